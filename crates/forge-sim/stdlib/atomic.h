// Atomics, relaxed as all of Metal's are. The executor hears of each; the operation itself is plain, because threads
// of the emulation take turns.
#pragma once

namespace metal {
enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
    T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;

template <class T> FORGE_OUTLINED T atomic_load_explicit(const volatile atomic<T>* at, memory_order) {
    forge_atomic((void*)at, sizeof(T), 0, FORGE_HERE);
    return at->value;
}
template <class T, class V> FORGE_OUTLINED void atomic_store_explicit(volatile atomic<T>* at, V value, memory_order) {
    forge_atomic((void*)at, sizeof(T), 1, FORGE_HERE);
    at->value = T(value);
}
#define FORGE_FETCH(name, T_combine)                                                                 \
    template <class T, class V> FORGE_OUTLINED T name(volatile atomic<T>* at, V given, memory_order) {  \
        forge_atomic((void*)at, sizeof(T), 2, FORGE_HERE);                                           \
        T a = at->value, b = T(given);                                                               \
        at->value = T(T_combine);                                                                    \
        return a;                                                                                    \
    }
FORGE_FETCH(atomic_exchange_explicit, b)
FORGE_FETCH(atomic_fetch_add_explicit, a + b)
FORGE_FETCH(atomic_fetch_sub_explicit, a - b)
FORGE_FETCH(atomic_fetch_and_explicit, a & b)
FORGE_FETCH(atomic_fetch_or_explicit, a | b)
FORGE_FETCH(atomic_fetch_xor_explicit, a ^ b)
FORGE_FETCH(atomic_fetch_min_explicit, b < a ? b : a)
FORGE_FETCH(atomic_fetch_max_explicit, a < b ? b : a)
template <class T, class V>
FORGE_OUTLINED bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* at, T* expected, V desired, memory_order,
                                                       memory_order) {
    forge_atomic((void*)at, sizeof(T), 2, FORGE_HERE);
    T found = at->value;
    if (found == *expected) {
        at->value = T(desired);
        return true;
    }
    *expected = found;
    return false;
}
}
