// Integer dot products of a lane's block of two weight rows, eight words of four signed bytes each, with the
// block's 16-bit quantized activations. Threadgroup memory has four blocks of activations: for each the words
// of the upper bytes, then those of the lower bytes. The lane's block is `quarter`. Pairs of words are 16
// columns apart. Each of eight rows of lanes, `row`, has four blocks. Targets with integer MMA replace this
// body.
#ifndef OWN_BLOCK_PRODUCTS
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
