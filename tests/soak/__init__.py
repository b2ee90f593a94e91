"""The soak: an application under load on real processes and a real server, and a fault every few seconds.

make soak                                      # an hour
python -m tests.soak --seconds 600 --rate 2000 # ten minutes; --help shows all

What was accepted and what the handlers did is kept outside the database; at the end both are held against the tables.
"""
