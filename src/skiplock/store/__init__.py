"""Cellar: the only floor that talks to PostgreSQL."""
