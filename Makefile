# make demo and make test are all that a newcomer needs; both install what is
# missing (Debian's packages, as root) and say so.

GO ?= go
FUZZTIME ?= 10s

# Also changes what is checked where tests are spread over build tags.
TAGS := engine,crash,e2e,vm,failpoints,fixture
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
LANES := $(GO) run ./integration/lanes

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: build
build: ## static binaries to build/
	CGO_ENABLED=0 $(GO) build -trimpath -o build/ ./cmd/hostagent ./cmd/controller ./cmd/agentctl

.PHONY: setup
setup: ## install what the tests need
	integration/setup/install.sh

.PHONY: lint
lint: ## tidy modules, vet and staticcheck, with and without build tags
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) vet -tags $(TAGS) ./...
	$(STATICCHECK) ./...
	$(STATICCHECK) -tags $(TAGS) ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/...

.PHONY: unit
unit: lint ## lint, then the unit lane with the race detector
	$(LANES) -race unit unit

.PHONY: fuzz
fuzz: ## every fuzz target, or TARGETS, for FUZZTIME (default 10s; 500x: that many inputs)
	GO="$(GO)" integration/setup/fuzz.sh $(FUZZTIME) $(TARGETS)

.PHONY: corpora
corpora: ## keep what fuzzing found: a bounded number of inputs to each testdata/fuzz
	GO="$(GO)" integration/setup/corpora.sh

.PHONY: engine
engine: setup ## tests on a private containerd; as root
	$(LANES) -timeout 60m engine

.PHONY: crash
crash: setup ## processes killed and disks cut at every step, a sample of the rows; as root
	@rm -f build/crash/matrix.txt
	@$(LANES) -timeout 60m crash; status=$$?; \
	if [ -f build/crash/matrix.txt ]; then cat build/crash/matrix.txt; fi; exit $$status

ROUNDS ?= 1
.PHONY: crash-all
crash-all: setup ## the same with every row, ROUNDS (default 1) times each
	@rm -f build/crash/matrix.txt
	@QUITTANCE_ROUNDS=$(ROUNDS) $(LANES) -whole -timeout 24h crash; status=$$?; \
	if [ -f build/crash/matrix.txt ]; then cat build/crash/matrix.txt; fi; exit $$status

.PHONY: e2e
e2e: setup ## whole systems of the real binaries; as root
	$(LANES) -timeout 60m e2e

JOBS ?= 1000
SEED ?= 7
.PHONY: soak
soak: setup ## JOBS (default 1000) through lossy networks and random kills chosen by SEED; as root
	$(GO) test -tags e2e -count=1 -timeout 24h -v -run TestJobsThroughStorms ./integration/soak -args -jobs $(JOBS) -seed $(SEED)

.PHONY: vm-setup
vm-setup:
	integration/setup/install.sh qemu-system-x86 qemu-utils mmdebstrap

.PHONY: vm
vm: setup vm-setup ## packages, units and power cuts on a whole machine in QEMU; as root
	@integration/vm/run.sh $(LANES) -timeout 150m vm

CUTS ?= 30
.PHONY: vm-soak
vm-soak: setup vm-setup ## the same with CUTS (default 30) power cuts, 200 kills and every order of acts
	@integration/vm/run.sh $(GO) test -tags vm -count=1 -timeout 24h -v -run TestMachine ./integration/vm -args -cuts $(CUTS) -kills 200 -mixed

.PHONY: test
test: setup lint ## unit, engine, crash (a sample) and e2e, with one count at the end; as root
	$(LANES) -timeout 60m -race unit unit engine crash e2e

PARTS ?= test engines packages fuzz soak vm vm-soak
.PHONY: test-all
test-all: ## the long form of everything, PARTS chosen, one table at the end; as root, many hours
	@GO="$(GO)" MAKE="$(MAKE)" integration/setup/all.sh $(PARTS)

.PHONY: lists
lists: setup ## rewrite the lists of the tests of unit, engine, crash and e2e; as root
	$(LANES) -timeout 60m -add unit engine crash e2e

.PHONY: demo
demo: ## real jobs through the whole path on this machine; as root
	$(GO) run ./integration/demo

.PHONY: packages
packages: ## .deb and .rpm to build/packages/
	packaging/build.sh

.PHONY: packages-check
packages-check: packages ## the same, looked at by lintian and rpmlint; as root
	packaging/lint/lint.sh

.PHONY: release
release: ## a signed release of the tagged commit in build/release/; RELEASE_KEY=FILE
	packaging/release.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf build
