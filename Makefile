# Everything a user or CI runs. `make setup` is part of each target and does nothing when it has been done.
#
#   make install        Tidegate alone, locked, with every store's client, into PREFIX (/opt/tidegate)
#   make setup          .venv with what runs, locked, and the project; Kafka's jars in build/kafka/libs
#   make demo           a real Kafka, Tidegate in front, a real client       (ARGS=--keep leaves them running)
#   make test           minutes: all that computes, one broker, real clients  (ARGS='-k name' and the like)
#   make test-all       what `make test` leaves out, with all examples drawn; needs Go, Node and Debian's tools
#   make test-long      the long ones
#   make lint           style, types, import law, house rules
#   make house          how simple the tree is, in figures
#   make bench          measures what README.md and docs/performance.md quote, and writes it there
#   make lock           write requirements/*.txt again from pyproject.toml
#   make release        from a clean tag: all that is published, into dist/
#
# Rarer ones, and what tests need beyond Python: tests/tools.mk.

PYTHON ?= python3
PREFIX ?= /opt/tidegate
ARGS ?=
# `proxy.workers` of the Tidegates that tests start and that do not say it themselves.
WORKERS ?=
# Processes of `make test`; 0: pytest's own, as a debugger wants it.
JOBS ?= 2
# Processes of `make test-all`, whose tests wait more than they compute; each may have brokers, and one has Spark.
ALL_JOBS ?= 4

VENV := .venv
BIN := $(VENV)/bin
JARS := build/kafka/libs
# It ends before a slower compiler of the JVM's would pay.
MVN := MAVEN_OPTS="$$MAVEN_OPTS -XX:TieredStopAtLevel=1 -XX:+UseSerialGC" mvn --batch-mode -Dstyle.color=never --quiet
# By uv, with pip's settings; by pip where uv cannot.
INSTALL := $(BIN)/python tools/install_packages.py
# tests/support/suites.py says which tests are whose.
PYTEST := $(BIN)/pytest --dist loadgroup --no-loadscope-reorder

# A machine may forbid Python to keep what it has compiled. Then each of the hundreds of processes that tests start
# compiles all of it again, and each worker of pytest the tests themselves: two minutes of processor time in a run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install setup doctor-demo demo test test-all test-long lint house bench lock release
.DELETE_ON_ERROR:

# Nothing of the demo. What builds the wheel is locked with what runs.
install:
	@$(PYTHON) tools/doctor.py python
	@$(PYTHON) -m venv $(PREFIX)
	@$(PREFIX)/bin/python tools/install_packages.py --require-hashes -r requirements/image.txt -r requirements/run.txt \
		-- --no-deps --no-build-isolation .
	@$(PREFIX)/bin/tidegate files $(PREFIX) >/dev/null && $(PREFIX)/bin/tidegate --version

setup: $(VENV)/.run $(JARS)/.complete

doctor-demo:
	@test -e $(VENV)/.run || echo "setup: looking at what this machine has"
	@$(PYTHON) tools/doctor.py demo

include tests/tools.mk

# Three locks, each with all of the one before. What builds the project is part of the first, so that nothing is fetched
# unlocked.
$(VENV)/.run: requirements/run.txt requirements/uv.txt pyproject.toml | doctor-demo
	@echo "setup: what Tidegate needs into $(VENV)"
	@$(BIN)/python tools/doctor.py python 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) --require-hashes -r requirements/run.txt -- --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run | doctor
	@echo "setup: what tests and checks need into $(VENV)"
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(JARS)/.complete: tools/kafka/pom.xml | doctor-demo
	@echo "setup: Kafka's jars into $(JARS)"
	@rm -rf $(JARS)
	@$(MVN) --file tools/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(JARS)
	@touch $@

demo: setup
	$(BIN)/python -m tools.demo $(ARGS)

test: $(VENV)/.dev $(CLASSES)
	$(PYTEST) -n $(JOBS) --suite quick $(ARGS)
	@echo "make test-all adds clusters, faults, hostile peers, other clients, other stores, Spark, deployment" \
		"and all drawn examples: half an hour on two cores, with Go, Node and Debian's packages."

# Where a skipped test is a failed one, what tests would be skipped without is got first.
test-all: $(VENV)/.dev $(VENV)/.docs $(VENV)/.fuzz $(CLASSES) spark $(if $(filter 1,$(TIDEGATE_REQUIRE_ALL)),test-tools)
	$(PYTEST) -n $(ALL_JOBS) --suite all $(ARGS)

test-long: $(VENV)/.dev $(CLASSES) spark
	$(BIN)/pytest --suite long $(ARGS)

lint: $(VENV)/.spark
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet tests/repository/test_tidy.py

house: $(VENV)/.dev
	@$(BIN)/python -m tools.house

bench: setup $(TOOLS)/toxiproxy-server $(TOOLS)/versitygw
	failed=; for each in cost growth workers; do \
		$(BIN)/python benchmarks/$$each.py --save docs/performance/$$each.jsonl $(ARGS) || failed=1; done; \
	$(BIN)/python benchmarks/publish.py && test -z "$$failed"
