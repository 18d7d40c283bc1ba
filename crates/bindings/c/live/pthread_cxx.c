/*
 * The counterpart of pthread.c for std::condition_variable::wait, which C++ has in its shared library: it unlocks and
 * locks a std::mutex by calls that are not the program's. A separate object file, because programs in C have no such
 * function.
 */

unsigned untorn_pthread_wait_begins(void *mutex);
void untorn_pthread_wait_ended(void *mutex, unsigned depth, int result);

/* A std::unique_lock begins with the address of its mutex, and a std::mutex is a pthread mutex. */
void __real__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void *condition, void **guard);
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void *condition, void **guard);
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void *condition, void **guard) {
    unsigned depth = untorn_pthread_wait_begins(*guard);
    __real__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(condition, guard);
    untorn_pthread_wait_ended(*guard, depth, 0);
}
