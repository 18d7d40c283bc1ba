# Flags of programs that have sections of live heaps, for the wrappers, pkg-config and CMake. Read by scripts/install.sh.
# Stores are announced by calls, and nothing else of the sanitizer is there; no link-time part of it is needed.
LIVE_GCC_FLAGS="-fsanitize=kernel-address --param=asan-instrumentation-with-call-threshold=0 --param=asan-stack=0"
LIVE_GCC_FLAGS="$LIVE_GCC_FLAGS --param=asan-globals=0 --param=asan-instrument-reads=0 --param=asan-instrument-allocas=0"
LIVE_CLANG_FLAGS="-fsanitize=kernel-address -mllvm -asan-instrumentation-with-call-threshold=0 -mllvm -asan-stack=0"
LIVE_CLANG_FLAGS="$LIVE_CLANG_FLAGS -mllvm -asan-globals=0 -mllvm -asan-instrument-reads=0"
LIVE_CLANG_FLAGS="$LIVE_CLANG_FLAGS -mllvm -asan-instrument-dynamic-allocas=0"
# Checked variants of functions of the C library are not wrapped.
LIVE_COMMON_FLAGS="-fno-lto -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0"
# As hooks.c and libstdcxx.cpp have them.
LIVE_WRAPS="untorn_mutex_lock untorn_mutex_unlock memcpy memmove memset mempcpy strcpy stpcpy strncpy stpncpy strcat strncat read pread pread64 readv preadv recv
recvfrom getrandom qsort memccpy explicit_bzero bzero bcopy strtok_r strftime clock_gettime localtime_r gmtime_r fread fgets vsnprintf
snprintf vsprintf sprintf _ZSt29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_
_ZSt28_Rb_tree_rebalance_for_erasePSt18_Rb_tree_node_baseRS_ _ZNSt8__detail15_List_node_base7_M_hookEPS0_
_ZNSt8__detail15_List_node_base9_M_unhookEv _ZNSt8__detail15_List_node_base11_M_transferEPS0_S1_
_ZNSt8__detail15_List_node_base10_M_reverseEv _ZNSt8__detail15_List_node_base4swapERS0_S1_
_ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm _ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm"
# As pthread.c and pthread_cxx.c have them.
PTHREAD_WRAPS="pthread_mutex_lock pthread_mutex_trylock pthread_mutex_timedlock pthread_mutex_clocklock pthread_mutex_unlock
pthread_cond_wait pthread_cond_timedwait pthread_cond_clockwait pthread_rwlock_wrlock pthread_rwlock_trywrlock
pthread_rwlock_timedwrlock pthread_rwlock_clockwrlock pthread_rwlock_rdlock pthread_rwlock_tryrdlock pthread_rwlock_timedrdlock
pthread_rwlock_clockrdlock pthread_rwlock_unlock
_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
