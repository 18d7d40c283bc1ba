#!/bin/bash
# The compiler of `make test`: programs of tests (crates/*/tests/) are built without optimisation, in a third of the
# time; the crates that they test keep the optimisation of the profile. Cargo has no profile for test targets alone.
rustc=$1
shift
case " $* " in
*/tests/*.rs\ *" --test "*) set -- "$@" -C opt-level=0 ;;
esac
exec "$rustc" "$@"
