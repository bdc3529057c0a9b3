# Paths are relative throughout: make knows no way to quote a clone whose own path has a space.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench bench-recovery clean distclean

python := .venv/bin/python

help:
	@echo "make demo    a job that survives preemptions, on this computer: no cloud account, under 3 minutes"
	@echo "make test    all tests"
	@echo "make check   ruff and mypy"
	@echo "make bench   which benchmarks there are"
	@echo "make setup   what all of these do first: .venv, etcd and sshd; quick when nothing is left to do"
	@echo "make clean   remove what runs have written; make distclean: what setup has written, too"
	@echo
	@echo "PYTHON=...       the interpreter for .venv (3.11 or newer); pip's own settings (PIP_INDEX_URL, ...) apply"
	@echo "PYTEST_ARGS=...  more arguments for pytest: make test PYTEST_ARGS='-k bootstrap'"

setup:
	@scripts/setup

demo: setup
	@$(python) -m scripts.demo

test: setup
	@$(python) -m pytest -n 2 $(PYTEST_ARGS)

check: setup
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m mypy

bench:
	@echo "make bench-recovery   the pause after a killed node and after a notice: spotsup, torchrun, and the floor"
	@echo "Each prints a table and writes build/bench/<name>.json"

bench-recovery: setup
	@$(python) -m scripts.bench_recovery

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .tools
