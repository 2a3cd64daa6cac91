// Sum of the products of four signed bytes. Targets with an instruction for it replace this body.
#ifndef OWN_BYTE_PRODUCTS
inline int byte_products(uint a, uint b) {
    const char4 left = as_type<char4>(a);
    const char4 right = as_type<char4>(b);
    return int(left.x) * int(right.x) + int(left.y) * int(right.y) + int(left.z) * int(right.z) + int(left.w) * int(right.w);
}
#endif
