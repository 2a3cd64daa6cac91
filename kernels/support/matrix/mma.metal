// Multiply-accumulate of 8 by 8 matrices. One variant multiplies two left factors, `upper` and `lower`, by
// one right factor. The `ranged` variants use f32 for range only, so products may be rounded as in f16.
// Targets with other MMA instructions replace these bodies.
#ifndef OWN_PRODUCTS
template <class T>
inline void add_products(
    thread simdgroup_matrix<float, 8, 8>& upper, thread simdgroup_matrix<float, 8, 8>& lower,
    simdgroup_matrix<T, 8, 8> upper_left, simdgroup_matrix<T, 8, 8> lower_left, simdgroup_matrix<T, 8, 8> right) {
    simdgroup_multiply_accumulate(upper, upper_left, right, upper);
    simdgroup_multiply_accumulate(lower, lower_left, right, lower);
}

inline void add_products_ranged(
    thread simdgroup_matrix<float, 8, 8>& upper, thread simdgroup_matrix<float, 8, 8>& lower,
    simdgroup_matrix<float, 8, 8> upper_left, simdgroup_matrix<float, 8, 8> lower_left, simdgroup_matrix<float, 8, 8> right) {
    add_products(upper, lower, upper_left, lower_left, right);
}

inline void add_product_ranged(
    thread simdgroup_matrix<float, 8, 8>& sum, simdgroup_matrix<float, 8, 8> left, simdgroup_matrix<float, 8, 8> right) {
    simdgroup_multiply_accumulate(sum, left, right, sum);
}
#endif
