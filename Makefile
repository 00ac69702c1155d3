# What there is to do here. `make` alone lists it; every target sets up what it needs.

python := .venv/bin/python
code := push storage metadata runtime services gateway clients/python/src
.DEFAULT_GOAL := help
# Of a command that is only asked for its help: it needs no more than a broker does.
helps = $(filter --help -h,$(ARGS))
# Tests start hundreds of processes: who compiles nothing to keep would compile it all in each.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help run cluster report setup test quick check lint types layers docs format bench load swarm peers soak chaos trials contract autobahn mutants lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

run:  ## set up, then start the broker with the live demo (Ctrl-C ends it)
	@scripts/setup run
	@.venv/bin/tocsin demo $(ARGS)

cluster:  ## a whole cluster on this machine, to look at and to break (Ctrl-C ends it)
	@scripts/setup run
	@scripts/needs only redis haproxy
	@$(python) -m scripts.cluster $(ARGS)

report:  ## the way of every message, from a broker's delivery log (installs PySpark: 450 MB)
	@scripts/setup spark
	@scripts/needs only java
	@.venv/bin/tocsin report $(ARGS)

setup:  ## make .venv what the locks say; does nothing when it is
	@scripts/setup dev

test: setup  ## run the tests in four processes (ARGS="-k name" selects); pages: build/screenshots
	@scripts/needs chromium redis haproxy java jdk curl keepalived nginx prometheus
	@scripts/peers say
	$(python) -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

quick: lint types layers  ## a minute or two, for daily work: the checks, rules, wire, session
	$(python) -m pytest -n 2 tests/push tests/gateway/wire tests/gateway/session tests/conformance $(ARGS)

check: lint types layers docs test  ## lint, types, layers, documentation, tests

lint: setup  ## format and lint
	$(python) -m ruff format --check .
	$(python) -m ruff check .

types: setup  ## mypy --strict over code, tests and load tests
	$(python) -m mypy --strict $(code) clients/python/examples loadtests spark scripts tests

layers: setup  ## who may import whom, and the shape of the code
	PYTHONPATH=clients/python/src .venv/bin/lint-imports --no-cache
	$(python) -m pytest tests/layout

docs: setup  ## build the documentation into build/docs/site, links and anchors checked
	$(python) scripts/site.py

format: setup  ## rewrite code in its format, and the documents' tables from the code
	$(python) scripts/tables.py
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

bench: setup  ## measure every scenario against a broker of its own
	.venv/bin/tocsin bench --scenario all $(ARGS)

load:  ## five minutes of users of every kind, judged: build/load (ARGS=--help teaches)
	@scripts/setup $(if $(helps),run,dev)
	@$(python) -m loadtests.mix $(ARGS)

swarm:  ## thousands of idle sockets, and a storm of reconnects (ARGS=--help teaches)
	@scripts/setup $(if $(helps),run,dev)
	@$(python) -m loadtests.swarm $(ARGS)

peers:  ## Tocsin, NATS, RabbitMQ, Redis Streams at the same work (40 minutes; ARGS=--help)
	@scripts/setup $(if $(helps),run,dev)
	@$(if $(helps),:,scripts/needs redis)
	@$(if $(helps),:,scripts/peers)
	$(python) -m loadtests.peers run $(ARGS)

soak: setup  ## the whole runs of kill -9, power loss (an hour; needs root), tenants and properties
	@scripts/needs java redis
	TOCSIN_SOAK=1 $(python) -m pytest tests/push tests/histories/test_any_*.py \
	  tests/histories/test_healthy_logs.py -n 2
	TOCSIN_SOAK=1 $(python) -m pytest tests/system tests/histories/test_two_tenants.py \
	  -k "kill or power or nothing_crosses or every_process" -v -s -o faulthandler_timeout=3600 $(ARGS)
	@scripts/needs haproxy keepalived
	TOCSIN_SOAK=1 $(python) -m pytest tests/servers/test_pair.py -s -o faulthandler_timeout=3600
	TOCSIN_SOAK=1 $(python) -m pytest tests/spark -s -o faulthandler_timeout=3600
	@scripts/needs prometheus
	TOCSIN_SOAK=1 $(python) -m pytest tests/system/test_alerts_live.py -s -o faulthandler_timeout=3600
	TOCSIN_SOAK=1 $(python) -m pytest tests/storage/redis/test_redis_acks.py tests/storage/redis/test_redis_guard.py -s \
	  -o faulthandler_timeout=3600

chaos:  ## break a store and its gateways for hours, resumable (root; ARGS=--help teaches)
	@scripts/setup $(if $(helps),run,dev)
	@$(if $(helps),:,scripts/needs redis)
	@$(python) -m tests.chaos $(ARGS)

trials: setup  ## the whole runs of every bad day: --help lists them (an hour, 10 GB)
	@failed=0; for trial in churn visitors stuck "stuck --keys 30000" "stuck --handlers" stalled switch proxy kills slow calm bulk noisy later waiting seal fuzz schema hostile page console; do \
	  $(python) -m loadtests.trials $$trial $(ARGS) || failed=1; done; exit $$failed

contract: setup  ## the whole contract of storage and catalog on Redis and Valkey in every layout
	@scripts/needs redis
	TOCSIN_CONTRACT=all $(python) -m pytest tests/contract tests/metadata -n 2 $(ARGS)

autobahn: setup  ## the Autobahn test suite against our WebSockets (amd64 Debian; unpacks 60 MB)
	@scripts/autobahn

mutants: setup  ## plant each listed bug in a copy; a test must fail for every one (resumable)
	@scripts/needs chromium redis haproxy java jdk curl keepalived nginx prometheus
	$(python) scripts/mutants.py $(ARGS)

lock: setup  ## resolve the dependencies anew (ARGS=--upgrade: to their newest versions)
	$(python) scripts/lock.py $(ARGS)

clean:  ## remove what these targets made; data folders stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
	rm -rf *.egg-info clients/python/src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
