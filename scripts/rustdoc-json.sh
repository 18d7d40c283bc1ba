#!/bin/sh
# Rustdoc that may be asked for JSON, whatever the toolchain. As a program of its own, so that only rustdoc sees
# the variable: build scripts look at it, too, and would be run anew.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
