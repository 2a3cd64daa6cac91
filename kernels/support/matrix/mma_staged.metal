// 16 columns of two left factors, by as many rows of a right factor that lies in threadgroup memory, are added to `upper` and
// `lower`. Rows there are of `pitch` elements; where the factor is `turned` they are its columns. Halves are met by singles.
// `ranged` are singles that are so for their range alone. A target may have bodies of its own.
#ifndef OWN_STRIPS
template <class T>
inline void add_strip(
    thread simdgroup_matrix<float, 8, 8>& upper, thread simdgroup_matrix<float, 8, 8>& lower,
    thread const simdgroup_matrix<float, 8, 8>* upper_left, thread const simdgroup_matrix<float, 8, 8>* lower_left,
    threadgroup const T* right, ulong pitch, bool turned) {
    #pragma unroll
    for (uint k = 0u; k < 2u; k++) {
        simdgroup_matrix<T, 8, 8> factor;
        simdgroup_load(factor, right + k * 8u * (turned ? 1ul : pitch), pitch, ulong2(0ul, 0ul), turned);
        simdgroup_multiply_accumulate(upper, upper_left[k], factor, upper);
        simdgroup_multiply_accumulate(lower, lower_left[k], factor, lower);
    }
}

inline void add_strip_ranged(
    thread simdgroup_matrix<float, 8, 8>& upper, thread simdgroup_matrix<float, 8, 8>& lower,
    thread const simdgroup_matrix<float, 8, 8>* upper_left, thread const simdgroup_matrix<float, 8, 8>* lower_left,
    threadgroup const float* right, ulong pitch, bool turned) {
    add_strip(upper, lower, upper_left, lower_left, right, pitch, turned);
}
#endif
