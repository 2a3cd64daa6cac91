// Products of f32 with MMA. A lane has `own_row` 0 to 7 and `quarter` 0 to 3 (see `gemv_batch`). A right factor has
// eight columns: the upper 11 bits of each value of four rows of x, and what they leave, in turn. Together they have
// 22 bits or more.

// Swaps a packet with the lane of the adjacent row. A lane has loaded the same columns of an even row and of the odd row
// after it: the first 32 of a step if its own row is even, else the last 32. The result is all 64 columns of its own row.
// Loads are coalesced: eight lanes read 128 contiguous bytes.
inline void swap_packets(thread uint4& first, thread uint4& second, bool is_odd) {
    const uint4 sent = is_odd ? first : second;
    const uint4 received = uint4(
        simd_shuffle_xor(sent.x, ushort(2)),
        simd_shuffle_xor(sent.y, ushort(2)),
        simd_shuffle_xor(sent.z, ushort(2)),
        simd_shuffle_xor(sent.w, ushort(2)));
    if (is_odd) {
        first = received;
    } else {
        second = received;
    }
}

// What a lane's column of a right factor has of these values of x.
inline float4 factor_part(float4 x, bool is_rest) {
    const float4 upper = as_type<float4>((as_type<uint4>(x) + uint4(0x1000u)) & uint4(0xffffe000u));
    return is_rest ? x - upper : upper;
}

// Adds products of 32 columns: 16 rows of W times `rows` rows of x, one or four. `above` and `below` are columns
// 8 `quarter` to 8 `quarter` + 7 of rows `own_row` and `own_row` + 8 of W, and `right` the same of column `own_row` of
// the right factor, which repeats a single row of x four times. The lane's sums are those of its two rows, for row
// `quarter` of x: x + y and z + w. Targets with MMA of TF32 replace this body.
#ifndef OWN_ROW_PRODUCTS
inline void add_row_products(
    thread float4& sums, thread const float4* above, thread const float4* below, thread const float4* right, uint rows,
    uint quarter) {
    #pragma unroll
    for (uint row = 0u; row < rows; row++) {
        // Its upper parts are in column 2 `row`, the rest in the next.
        const ushort upper = ushort((row & 2u) << 3u | (row & 1u) << 2u | (quarter & 2u) << 2u | (quarter & 1u));
        float first = 0.0f;
        float second = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < 8u; i++) {
            const float part = right[i / 4u][i % 4u];
            const float x = simd_shuffle(part, upper) + simd_shuffle(part, ushort(upper | 2u));
            first += above[i / 4u][i % 4u] * x;
            second += below[i / 4u][i % 4u] * x;
        }
        first += simd_shuffle_xor(first, ushort(1));
        first += simd_shuffle_xor(first, ushort(8));
        second += simd_shuffle_xor(second, ushort(1));
        second += simd_shuffle_xor(second, ushort(8));
        if (rows == 1u || row == quarter) {
            sums.x += first;
            sums.z += second;
        }
    }
}
#endif
