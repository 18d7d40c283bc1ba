# Sourced by build_live.sh and scripts/ports.sh.

# flushing_hooks SOURCE INCLUDE OBJECT [FLAG]: hooks that flush each record of the log, which is for measuring alone. The end of
# the log is flushed, too, unless the flag is -DFLUSH_END(a)=, as if records showed by themselves that they are whole. Fails on
# processors of other kinds.
flushing_hooks() {
    [ "$(uname -m)" = x86_64 ] || return 1
    local flush=clflush
    ! grep -qw clwb /proc/cpuinfo || flush=clwb
    cc -O2 -fPIC -fno-plt -I"$2" "-DFLUSH(a)=__asm__ volatile(\"$flush (%0)\"::\"r\"(a):\"memory\")" \
        '-DFENCE=__asm__ volatile("sfence":::"memory")' ${4:+"$4"} -c "$1" -o "$3"
}
