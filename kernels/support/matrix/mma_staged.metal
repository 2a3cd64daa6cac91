// Multiplies 16 columns of two left factors by rows of a right factor in threadgroup memory, and accumulates
// in `upper` and `lower`. Rows are `pitch` elements apart; with `transposed` the factor is transposed. f16 right
// factors are multiplied by f32. The `ranged` variants use f32 for range only. Targets may replace these
// bodies.
#ifndef OWN_STRIPS
template <class T>
inline void add_strip(
    thread simdgroup_matrix<float, 8, 8>& upper, thread simdgroup_matrix<float, 8, 8>& lower,
    thread const simdgroup_matrix<float, 8, 8>* upper_left, thread const simdgroup_matrix<float, 8, 8>* lower_left,
    threadgroup const T* right, ulong pitch, bool transposed) {
    #pragma unroll
    for (uint k = 0u; k < 2u; k++) {
        simdgroup_matrix<T, 8, 8> factor;
        simdgroup_load(factor, right + k * 8u * (transposed ? 1ul : pitch), pitch, ulong2(0ul, 0ul), transposed);
        simdgroup_multiply_accumulate(upper, upper_left[k], factor, upper);
        simdgroup_multiply_accumulate(lower, lower_left[k], factor, lower);
    }
}

inline void add_strip_ranged(
    thread simdgroup_matrix<float, 8, 8>& upper, thread simdgroup_matrix<float, 8, 8>& lower,
    thread const simdgroup_matrix<float, 8, 8>* upper_left, thread const simdgroup_matrix<float, 8, 8>* lower_left,
    threadgroup const float* right, ulong pitch, bool transposed) {
    add_strip(upper, lower, upper_left, lower_left, right, pitch, transposed);
}
#endif
