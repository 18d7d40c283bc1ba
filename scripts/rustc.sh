#!/bin/bash
# The compiler of `make test`: test programs are built without optimisation, in a third of the time; the crates that
# they test keep the optimisation of the profile. Cargo has no profile for test targets alone.
rustc=$1
shift
case " $* " in
*" --test "*) set -- "$@" -C opt-level=0 ;;
esac
exec "$rustc" "$@"
