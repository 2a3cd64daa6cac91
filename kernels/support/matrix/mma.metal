// Products of matrices, added up. Of two at once that share their right factor, `upper` and `lower`; `ranged` ones are of singles that
// are singles for their range alone, so that a product may lose what one of halves loses. A target whose matrix units know more
// than these operations has bodies of its own.
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
