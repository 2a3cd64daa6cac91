// Products of codes, added up: those that a lane has of a block of two rows, eight words of four bytes with signs each, with the
// block's codes of 16 bits. Of these threadgroup memory has four blocks, each the words of its upper bytes and then those of
// its lower ones; the lane's block is number `quarter`. Pairs of words are 16 columns apart. Eight rows of lanes, `row`, have four
// blocks each. A target that knows bytes has a body of its own.
#ifndef OWN_BLOCK_PRODUCTS
inline int byte_products(uint a, uint b) {
    const char4 left = as_type<char4>(a);
    const char4 right = as_type<char4>(b);
    return int(left.x) * int(right.x) + int(left.y) * int(right.y) + int(left.z) * int(right.z) + int(left.w) * int(right.w);
}

inline int2 block_products(
    thread const uint2* above, thread const uint2* below, threadgroup const uint* codes, uint, uint quarter) {
    threadgroup const uint* upper = codes + quarter * 16u;
    threadgroup const uint* lower = upper + 8u;
    int2 sums = int2(0);
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        #pragma unroll
        for (uint half_of = 0u; half_of < 2u; half_of++) {
            const uint word = half_of * 4u + i;
            sums.x += 256 * byte_products(above[i][half_of], upper[word]) + byte_products(above[i][half_of], lower[word]);
            sums.y += 256 * byte_products(below[i][half_of], upper[word]) + byte_products(below[i][half_of], lower[word]);
        }
    }
    return sums;
}
#endif
