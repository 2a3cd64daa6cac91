// What kernels call of the executor: barriers, exchanges of a simdgroup, threadgroup memory, atomics.
// Every function here is defined in hooks.cpp, which passes on the caller's address.
#pragma once
// Calls that all threads make together: the compiler may neither copy such a call into branches, nor merge two.
#define FORGE_CONVERGENT convergent, nomerge
#define FORGE_OUTLINED static __attribute__((noinline, FORGE_CONVERGENT, disable_sanitizer_instrumentation))
#define FORGE_HERE __builtin_return_address(0)

// Where the lanes of a simdgroup put a value each, and then read all of them.
struct forge_simd_values {
    uint ready;  // set by the first lane that has computed `result`
    uint lanes;  // of this simdgroup
    uint lane;   // the caller's own: written at each return of forge_exchange
    uint index;    // the caller's index in the threadgroup, and the threads of that: likewise
    uint threads;
    alignas(64) uchar result[512];
    alignas(64) uchar value[32][32];
};

extern "C" {
// Waits until every thread of the threadgroup (or simdgroup) is here. Flags: 1 device memory, 2 threadgroup memory.
void forge_threadgroup_barrier(uint flags) __attribute__((FORGE_CONVERGENT));
void forge_simdgroup_barrier(uint flags) __attribute__((FORGE_CONVERGENT));
// Waits until every lane of the simdgroup has brought its value to the operation at `where`.
forge_simd_values* forge_exchange(const void* value, uint size, void* where) __attribute__((FORGE_CONVERGENT));
// Notes that the lane has come to an operation that all lanes must reach, without waiting. Returns its index.
uint forge_lane_index(void) __attribute__((FORGE_CONVERGENT));
// The threadgroup's array number `id`, of `size` bytes.
void* forge_threadgroup(uint id, ulong size, uint alignment, const char* name);
// Kind: 0 load, 1 store, 2 both.
void forge_atomic(void* at, uint size, uint kind, void* where);
}

namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }
FORGE_INLINE void threadgroup_barrier(mem_flags flags) { forge_threadgroup_barrier(uint(flags)); }
FORGE_INLINE void simdgroup_barrier(mem_flags flags) { forge_simdgroup_barrier(uint(flags)); }
}

// A launch builtin of type T, from the words that the executor lays out.
template <class T> FORGE_INLINE T forge_builtin(const uint* words) {
    using E = typename forge_shape<T>::element;
    if constexpr (forge_shape<T>::vector) {
        T value;
        for (int i = 0; i < forge_shape<T>::count; i++) value[i] = E(words[i]);
        return value;
    } else
        return T(words[0]);
}
