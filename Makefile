# Two commands do all the set-up: `make demo` and `make test`. Python 3.11 or newer is enough.
PYTHON ?= python3
UV ?= uv
ENVIRONMENT := .venv
RUN := $(ENVIRONMENT)/bin/python
STAMP := $(ENVIRONMENT)/.installed

.DEFAULT_GOAL := help
# Every target is a command; none is a file.
.PHONY: $(shell sed -n 's/^\([a-z][a-z0-9-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 28

$(STAMP): pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py

demo: $(STAMP) ## broker, real client, consumer group and Spark job on real data, checked
	@$(RUN) scripts/demo.py

test: lint ## everything that CI runs for a change
	@$(RUN) tools/run_tests.py

test-asyncio-debug: $(STAMP) ## the broker's and the controller's unit tests in asyncio's debug mode
	@$(RUN) tools/run_tests.py --asyncio-debug

test-fast: $(STAMP) ## unit, property and tidy tests, without Java
	@$(RUN) -m pytest -q tests/unit tests/property tests/tidy

test-scale: $(STAMP) ## how the controller's work grows up to 100,000 partitions (minutes)
	@$(RUN) -m pytest -q tests/scale/large_counts.py

compat: $(STAMP) ## pinned real clients; writes docs/compatibility.md (ARGUMENTS=--both: on Apache Kafka 3.9.1, too)
	@$(RUN) -m tests.compat.suites.run $(ARGUMENTS)

compat-workers: $(STAMP) ## the clients of `make compat` against two workers of one machine (minutes)
	@$(RUN) -m tests.compat.suites.run --workers 2 $(ARGUMENTS)
	@OTTLA_COMPAT_WORKERS=--workers=2 $(RUN) -m pytest -q tests/compat/test_produce_consume.py \
		tests/compat/test_groups.py tests/compat/test_group_strategies.py \
		tests/compat/test_transactions.py tests/compat/test_java_clients.py

compat-tools: $(STAMP) ## every subcommand of Kafka's tools beside Apache Kafka 3.9.1; writes docs/tools.md (minutes; Java, Maven)
	@$(RUN) -m tests.compat.tools_table

compat-leaving: $(STAMP) ## from Ottla over Kafka 3.9.1 and KRaft to Kafka 4.3.1 (minutes; Java, Maven)
	@$(RUN) -m tests.compat.leaving

test-console: $(STAMP) ## the web console in headless Chromium, where there is one
	@$(RUN) -m tests.console.check $(ARGUMENTS)

console-screenshots: $(STAMP) ## the pictures of docs/console.md, with headless Chromium
	@$(RUN) -m tests.console.check --screenshots docs/images

test-compose: $(STAMP) ## docker-compose.yml with a Docker engine (started as root on Debian, where there is none)
	@$(RUN) -m tests.compose.check $(ARGUMENTS)

test-image: $(STAMP) ## the image alone: SASL only, full disk, networks, limits (CONTAINER_ENGINE=podman for Podman)
	@$(RUN) -m tests.compose.image $(ARGUMENTS)

site: $(STAMP) ## the documentation as a web site in site/ (ARGUMENTS=serve shows it while you write)
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs $(or $(ARGUMENTS),build)

test-quickstarts: $(STAMP) ## the programs of docs/quickstart.md in five languages (downloads clients; minutes)
	@$(RUN) -m tests.quickstarts.run $(ARGUMENTS)

test-chart: $(STAMP) ## the Helm chart with helm (from the PATH, or built with Go), and its pods as containers
	@$(RUN) -m pip install -q kubernetes-validate
	@$(RUN) -m tests.chart.check

check-alerts: $(STAMP) ## alert rules and /metrics with promtool (Debian package prometheus)
	@$(RUN) -m tests.monitoring.check

lint: $(STAMP) ## ruff, formatting and mypy --strict
	@$(ENVIRONMENT)/bin/ruff check .
	@$(ENVIRONMENT)/bin/ruff format --check .
	@$(ENVIRONMENT)/bin/mypy

format: $(STAMP) ## let ruff format and fix the tree
	@$(ENVIRONMENT)/bin/ruff check --fix .
	@$(ENVIRONMENT)/bin/ruff format .

bench: $(STAMP) ## Ottla and Apache Kafka 3.9.1 side by side
	@$(RUN) -m benchmarks.bench $(ARGUMENTS)

bench-share: $(STAMP) ## share groups beside Apache Kafka 4.3.1
	@$(RUN) -m benchmarks.bench_share $(ARGUMENTS)

bench-curves: $(STAMP) ## throughput, processor time, response time and memory over growing load
	@$(RUN) -m benchmarks.bench_curves $(ARGUMENTS)

bench-protocol: $(STAMP) ## codecs beside kio and kafka-python
	@$(RUN) -m benchmarks.bench_protocol
	@$(RUN) -m benchmarks.bench_records

bench-storage: $(STAMP) ## the log beside a bare write loop; ARGUMENTS="--only transactions"
	@$(RUN) -m benchmarks.bench_storage $(ARGUMENTS)

bench-spark: $(STAMP) ## the Spark connector beside the JVM one
	@$(RUN) -m benchmarks.bench_spark $(ARGUMENTS)

bench-tiered: $(STAMP) ## tiered history: copies, scans, and the tail beside scans (minutes)
	@$(RUN) -m benchmarks.bench_tiered $(ARGUMENTS)

bench-tiered-spark: $(STAMP) ## tiered history read by Spark: from the store and through the broker (minutes)
	@$(RUN) -m benchmarks.bench_tiered_spark $(ARGUMENTS)

spark-package: $(STAMP) ## the Spark connector as a zip for spark-submit --py-files
	@$(RUN) -m ottla.cli.main spark package $(ARGUMENTS)

compat-java: $(STAMP) ## every strategy of the Java consumers of 3.9 and 4.x (minutes; Java, Maven)
	@$(RUN) -m pytest -q tests/compat/java_matrix.py

compat-kafka-tests: $(STAMP) ## Kafka's own broker tests against Kafka and Ottla (ARGUMENTS=class; hours; Java, Maven)
	@$(RUN) -m tests.compat.kafka_tests.run $(ARGUMENTS)

compat-ecosystem: $(STAMP) ## Connect, MirrorMaker, Streams, ... on Ottla and Kafka 3.9.1 (an hour; Java, Maven)
	@$(RUN) -m tests.compat.ecosystem.run $(ARGUMENTS)

compare-share: $(STAMP) ## share groups beside Apache Kafka 4.3.1, and the share consumers on both (minutes; Java, Maven)
	@$(RUN) -m tests.differential.share_recording $(ARGUMENTS)
	@$(RUN) -m tests.compat.share.commands
	@$(RUN) -m tests.compat.share.run
	@$(RUN) -m tests.compat.share.features
	@$(RUN) -m tests.compat.share.librdkafka
	@$(RUN) -m tests.compat.share.cluster
	@$(RUN) -m tests.compat.share.mixed

compat-client-tests: $(STAMP) ## kafka-python's, aiokafka's, kafka-go's and Sarama's own tests on both (an hour; root, Go, Java, Maven)
	@$(RUN) -m tests.compat.client_tests.run $(ARGUMENTS)

compat-system: $(STAMP) ## Kafka's system-test tools through restarts, kills, upgrades and faults (hour; root, JDK, Maven)
	@$(RUN) -m tests.compat.system.run $(ARGUMENTS)

compat-kerberos: $(STAMP) ## Kerberos: clients, brokers, ZooKeeper and Kafka with a real KDC (Debian, Java)
	@$(RUN) tools/kerberos.py
	@$(RUN) -m pytest -q tests/kerberos/scenarios.py

compat-spark: $(STAMP) ## the Spark connector on pyspark 4.0, 4.1 and 4.2 (downloads them once; minutes)
	@$(RUN) -m pytest -q tests/spark/older_sparks.py

compat-spark-package: $(STAMP) ## the connector's zip by addPyFile, Spark Connect and on Python 3.10 (minutes)
	@$(RUN) -m pytest -q tests/spark/packages.py

spark-kill-matrix: $(STAMP) ## kill Spark executors and drivers at every step of a write (RUNS=100, SEED=1; hours)
	@$(RUN) -m tests.spark.kill_matrix --runs $(or $(RUNS),100) --seed $(or $(SEED),1) $(ARGUMENTS)
compat-spark-pages: $(STAMP) ## the commands of docs/spark/ on a standalone cluster and Spark Connect (downloads; minutes)
	@$(RUN) -m pytest -q tests/spark/pages.py

tiered-large: $(STAMP) ## a topic of 10 GB with 256 MB of it on the local disk, read by a consumer and by Spark (minutes; 13 GB of disk)
	@$(RUN) -m tests.spark.tiered_large $(ARGUMENTS)

compat-stores: $(STAMP) ## tiered storage with SeaweedFS, Azurite and the client of GCS (downloads them once; minutes; Node.js)
	@for store in seaweedfs azurite gcs-on-moto; do OTTLA_TEST_STORE=$$store $(RUN) -m pytest -q \
		tests/integration/test_remote_storage_s3.py tests/integration/test_tiered_fetch_s3.py || exit 1; done

compat-spark-tiered: $(STAMP) ## direct reads of tiered segments on a standalone cluster, with SeaweedFS (downloads it once; minutes)
	@OTTLA_TEST_STORE=seaweedfs $(RUN) -m pytest -q tests/spark/tiered_standalone.py $(ARGUMENTS)

compat-spark-tables: $(STAMP) ## ottla spark land into Iceberg and Delta on pyspark 4.1 (downloads them once; minutes)
	@$(RUN) -m pytest -q tests/spark/tables.py

compat-streams: $(STAMP) ## Kafka Streams, exactly_once_v2, through broker kills (JDK, Maven)
	@$(RUN) -m tests.compat.streams.run $(ARGUMENTS)

bench-cluster: $(STAMP) ## three brokers beside three of Apache Kafka, and what a controller has to do
	@$(RUN) -m benchmarks.bench_cluster $(ARGUMENTS)

compat-tiered: $(STAMP) ## tiered topics on a broker of Kafka 3.9.1 and one of Ottla with different stores (a minute; Java, Maven)
	@$(RUN) -m pytest -q tests/compat/tiered_mixed_cluster.py $(ARGUMENTS)

tiered-crashes: $(STAMP) ## crashes at every step of tiered storage's copies and deletions (SEEDS=100)
	@OTTLA_TIERED_CRASH_SEEDS=$(or $(SEEDS),100) $(RUN) -m pytest -q tests/crash/test_tiered_storage_crashes.py $(ARGUMENTS)

simulate: $(STAMP) ## replays one seed of the simulated cluster: SEED=n, ARGUMENTS="--power-loss --verbose ..."
	@$(RUN) -m tests.simulation.cluster $(or $(SEED),1) $(ARGUMENTS)

fuzz-damage: $(STAMP) ## random damage of log directories and embedded stores: DAMAGES=10000, SEED=n, ARGUMENTS=--keep-going
	@$(RUN) -m tests.damage --damages $(or $(DAMAGES),10000) --seed $(or $(SEED),1) $(ARGUMENTS)

hostile: $(STAMP) ## a client without rights sends the most expensive requests of all APIs (minutes)
	@$(RUN) -m tests.hostile.run $(ARGUMENTS)
	@OTTLA_SLOW_SITE=long $(RUN) -m pytest -q tests/hostile/test_slow_site.py

simulate-long: $(STAMP) ## new seeds of the simulated cluster on all cores for SIMULATE_SECONDS (7200)
	@$(RUN) -m tests.simulation.cluster.many $${SIMULATE_SECONDS:-7200} $(ARGUMENTS)

simulate-defects: $(STAMP) ## puts known defects back, one at a time: how many seeds until each is found
	@$(RUN) -m tests.simulation.cluster.defects $(ARGUMENTS)

chaos: $(STAMP) ## twenty minutes of trouble for three brokers; OTTLA_CHAOS_SEED=N, OTTLA_CHAOS_KAFKA=1
	@OTTLA_CHAOS_SECONDS=$${OTTLA_CHAOS_SECONDS:-1200} $(RUN) -m pytest -q -s tests/chaos

chaos-share: $(STAMP) ## an hour of share consumers while brokers are killed; ARGUMENTS="--seconds 60"
	@$(RUN) -m tests.chaos.share $(ARGUMENTS)

mutation: $(STAMP) ## mutants of the modules that decide; ARGUMENTS="controller/state/leader_selection.py"
	@nice -n 10 $(RUN) -m tests.mutation $(ARGUMENTS)

soak: $(STAMP) ## the long form of the abuse tests: 200 clients, what stays open is counted
	@OTTLA_SOAK_ROUNDS=$${OTTLA_SOAK_ROUNDS:-80} $(RUN) -m pytest -q -s tests/soak

test-pythons: $(STAMP) ## the wheel, installed, on every supported Python that is found or fetched (downloads)
	@$(RUN) -m tests.installed.pythons

golden: $(STAMP) ## generate the golden vectors from Kafka's own classes (JDK and Maven)
	@$(RUN) -m tests.golden.regenerate

dist: $(STAMP) ## the wheel and the source archive in dist/
	@$(RUN) -m pip wheel -q --no-deps --wheel-dir dist .
	@$(RUN) -c "from setuptools.build_meta import build_sdist; build_sdist('dist')"

sbom: $(STAMP) ## bill of materials (CycloneDX) and licences in dist/, of the wheel and of IMAGE=name
	@$(RUN) -m tools.sbom wheel $(ARGUMENTS)
	@$(if $(IMAGE),$(RUN) -m tools.sbom image $(IMAGE) $(ARGUMENTS))

test-downgrade: $(STAMP) ## an older state (COMMIT) starts on what this one wrote, and back (git; a minute)
	@$(RUN) -m tests.upgrade back $(COMMIT)

audit: $(STAMP) ## known vulnerabilities of what the image installs (asks osv.dev)
	@$(RUN) -m tools.audit $(ARGUMENTS)

COMPILE := pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 \
	--no-emit-index-url --no-annotate --custom-compile-command "make constraints"

constraints: ## write deploy/image/constraints*.txt with the newest versions (uv)
	@$(UV) $(COMPILE) pyproject.toml deploy/image/build.in -o deploy/image/constraints.txt
	@for extra in kerberos oauth otel tiered; do \
		$(UV) $(COMPILE) deploy/image/$$extra.in -o deploy/image/constraints-$$extra.txt || exit 1; done

clean: ## remove the environment and every cache
	@rm -rf $(ENVIRONMENT) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
