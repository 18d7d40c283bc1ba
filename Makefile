# Everything that is done with Untorn's source. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
PREFIX ?= /usr/local
# Where cargo builds; the programs below are run from there.
TARGET := $(or $(CARGO_TARGET_DIR),target)
PROGRAMS := $(addprefix $(TARGET)/release/,untorn untorn-crashtest untorn-xsync untorn-mount untorn-ship untorn-top untorn-bench)
FUZZ_SECONDS ?= 20
# Tests of ordinary users need a directory for temporary files in which they may write. In some containers only root may
# write in /tmp.
ifeq ($(shell id -u)$(shell find -L $${TMPDIR:-/tmp} -maxdepth 0 -perm -0003),0)
export TMPDIR := /var/tmp
endif

.PHONY: help setup build test test-full demo bench papers check mutants install uninstall man fuzz crash-soak crash-totals deb deb-tests wheel ports sqlite-tests ship-tests xsync-programs mount-programs mount-kernels mount-xfstests machine-cuts nvm-tests small aarch64 site clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 12

setup: ## Install the system packages that are missing (Debian and Ubuntu); does nothing when all are there
	@scripts/setup.sh

build: ## Build the libraries and the seven programs, optimised
	$(CARGO) build --release --workspace
	scripts/assemble.sh $(TARGET)/release
	ln -sf install/libuntorn-preload.so $(TARGET)/release/libuntorn-preload.so
	if [ -e $(TARGET)/release/install/libuntorn_sqlite.so ]; then \
		ln -sf install/libuntorn_sqlite.so $(TARGET)/release/libuntorn_sqlite.so; fi

test: setup ## Run every test; prints totals
	@scripts/test.sh

test-full: setup ## All of every long test, and other projects' programs and suites (root; needs the network; hours)
	UNTORN_FULL=1 UNTORN_TEST_SECONDS_MAX=7200 scripts/test.sh
	$(CARGO) publish --workspace --dry-run --locked --allow-dirty
	scripts/small.sh
	scripts/aarch64.sh
	scripts/wheel.sh
	scripts/deb.sh
	scripts/deb-tests.sh
	scripts/ports.sh
	scripts/sqlite-tests.sh
	scripts/xsync-programs.sh
	scripts/mount-programs.sh
	scripts/machine-cuts.sh
	scripts/nvm-tests.sh

demo: ## Kill a program a few hundred times, with and without Untorn, and count torn states (needs Rust and cc only)
	$(CARGO) run --release --locked --package untorn-demo --example demo

bench: build ## Measure everything against the floor and the usual ways (root; at most 90 minutes); prints tables
	$(TARGET)/release/untorn-bench all

papers: build ## Measure the figures of the papers beside their numbers (root; hours); writes docs/PAPERS.md and its pictures
	scripts/setup.sh papers
	mkdir -p $(TARGET)/papers
	UNTORN_BENCH_APACHE=$$(scripts/apache-sources.sh $(TARGET)/papers || true) \
		$(TARGET)/release/untorn-bench paper --json $(TARGET)/papers/results.json
	$(TARGET)/release/untorn-bench paper --page $(TARGET)/papers/results.json --out docs/pictures/papers \
		--pictures pictures/papers > docs/PAPERS.md

check: setup ## Formatting, lints, documentation, licences and advisories of dependencies
	@scripts/check.sh

mutants: ## Take every sync point and invariant away, one at a time: something must fail (WRITE=1 writes docs/generated/MUTANTS.md)
	@WRITE="$(WRITE)" scripts/mutants.sh

install: ## Install library, header, programs and their pages under PREFIX (default /usr/local)
	PREFIX="$(PREFIX)" scripts/install.sh

uninstall: ## Remove what `make install` has installed under PREFIX
	PREFIX="$(PREFIX)" scripts/uninstall.sh

man: build ## Write man pages to $(TARGET)/man
	mkdir -p $(TARGET)/man
	for program in $(PROGRAMS); do $$program man $(TARGET)/man; done

fuzz: ## Fuzz every parser for FUZZ_SECONDS each (needs a nightly toolchain and cargo-fuzz)
	@scripts/fuzz.sh $(FUZZ_SECONDS)

crash-soak: ## Crash states with new seeds, simulated and on real file systems (root), for SECONDS; goes on where it was
	@scripts/crash-soak.sh

crash-totals: ## The sums of everything that `make crash-soak` has tried (WRITE=1 writes docs/generated/EVIDENCE.md)
	@scripts/crash-soak.sh totals
	@WRITE="$(WRITE)" scripts/evidence.sh

deb: ## Build Debian packages in $(TARGET)/debian, and check them with lintian (debhelper, libsqlite3-dev)
	@scripts/deb.sh

deb-tests: ## Install, use, upgrade and remove the packages of `make deb` in a container that boots (root; network)
	@scripts/deb-tests.sh

wheel: ## Build the Python wheel for manylinux in $(TARGET)/wheels, and check it with auditwheel and abi3audit (network)
	@scripts/wheel.sh

ports: setup ## Port five programs to Untorn, test, kill and measure them (needs the network)
	@scripts/ports.sh

sqlite-tests: build ## SQLite's own tests and programs with the VFS as the default one (tcl-dev; needs the network; an hour)
	@scripts/sqlite-tests.sh

ship-tests: ## Ship, restore and follow on servers that speak S3: versitygw and moto (Go, Python; needs the network once)
	@scripts/setup.sh ship
	@scripts/ship-tests.sh

xsync-programs: ## Real programs in sessions of `untorn xsync`: databases, builds, packages (root; needs the network)
	@scripts/xsync-programs.sh

mount-programs: ## Programs on a mounted store: fsx, pjdfstest, fio, databases through kills and power cuts (root, network)
	@scripts/mount-programs.sh

mount-kernels: ## A mount on Debian's kernels 6.1 and 6.12, in an emulated machine (network; or KERNEL=vmlinuz MODULES=DIR)
	@scripts/setup.sh machines || true
	@scripts/mount-kernels.sh

machine-cuts: ## Kill whole machines, and make their kernels panic, while they update files (network; CUTS=200 PANICS=50)
	@scripts/setup.sh machines || true
	@scripts/machine-cuts.sh

nvm-tests: ## The same on byte-addressable memory, and live heaps through panics (network; CUTS=200 PANICS=50)
	@scripts/setup.sh machines || true
	@scripts/nvm-tests.sh

mount-xfstests: ## xfstests on mounted stores, in all modes of commits (root; XFSTESTS=DIR, a built checkout)
	@scripts/mount-xfstests.sh "$(XFSTESTS)"

small: ## Sizes of a C program with the whole library and with the smallest build, which is tried (minutes)
	@scripts/small.sh --whole

aarch64: ## Build for aarch64, and run unit tests in an emulator (Debian; root; the network once)
	@scripts/aarch64.sh

site: ## Build the documentation as a site in $(TARGET)/site, and check its links (mdbook; mandoc and pdoc if there)
	@scripts/site.sh

clean: ## Remove everything that was built
	$(CARGO) clean
	rm -rf fuzz/target
