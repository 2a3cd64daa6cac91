// The callbacks that instrumented code makes, passed on to the executor with the address they were called from.
// Compiled once, without instrumentation.
typedef unsigned int uint;
typedef unsigned long ulong;

struct forge_table {
    void (*access)(void* at, uint code, void* where);
    void (*range)(void* at, ulong size, uint write, void* where);
    void (*barrier)(uint simdgroup, uint flags, void* where);
    void* (*exchange)(const void* value, uint size, void* where);
    uint (*pass)(void* where);
    void* (*threadgroup)(uint id, ulong size, uint alignment, const char* name);
    void (*atomic)(void* at, uint size, uint kind, void* where);
    void (*trap)(uint kind, ulong value, void* where);
};
static forge_table table;
#define HERE __builtin_return_address(0)
#define EXPORT extern "C" __attribute__((visibility("default")))
#define HOOK extern "C" __attribute__((visibility("hidden")))

EXPORT void forge_bind(const forge_table* given) { table = *given; }

HOOK void forge_threadgroup_barrier(uint flags) { table.barrier(0, flags, HERE); }
HOOK void forge_simdgroup_barrier(uint flags) { table.barrier(1, flags, HERE); }
HOOK void* forge_exchange(const void* value, uint size, void* where) { return table.exchange(value, size, where); }
HOOK uint forge_lane_index() { return table.pass(HERE); }
HOOK void* forge_threadgroup(uint id, ulong size, uint alignment, const char* name) { return table.threadgroup(id, size, alignment, name); }
HOOK void forge_atomic(void* at, uint size, uint kind, void* where) { table.atomic(at, size, kind, where); }

// code: size in bytes | 256 if it writes | 512 if the type's natural alignment is promised.
#define ACCESS(size)                                                                        \
    HOOK void __tsan_read##size(void* at) { table.access(at, size | 512, HERE); }           \
    HOOK void __tsan_write##size(void* at) { table.access(at, size | 256 | 512, HERE); }    \
    HOOK void __tsan_unaligned_read##size(void* at) { table.access(at, size, HERE); }       \
    HOOK void __tsan_unaligned_write##size(void* at) { table.access(at, size | 256, HERE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void*) {}
HOOK void __tsan_func_exit() {}
HOOK void* __tsan_memcpy(void* to, const void* from, ulong size) {
    table.range((void*)from, size, 0, HERE);
    table.range(to, size, 1, HERE);
    return __builtin_memcpy(to, from, size);
}
HOOK void* __tsan_memmove(void* to, const void* from, ulong size) {
    table.range((void*)from, size, 0, HERE);
    table.range(to, size, 1, HERE);
    return __builtin_memmove(to, from, size);
}
HOOK void* __tsan_memset(void* to, int value, ulong size) {
    table.range(to, size, 1, HERE);
    return __builtin_memset(to, value, size);
}

// Undefined behaviour that clang checks itself: an index beyond an array whose size it knows, a division by zero.
HOOK void __ubsan_handle_out_of_bounds(void*, ulong index) { table.trap(0, index, HERE); }
HOOK void __ubsan_handle_divrem_overflow(void*, ulong, ulong) { table.trap(1, 0, HERE); }
