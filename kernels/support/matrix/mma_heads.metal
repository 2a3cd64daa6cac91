// Products of eight heads with eight or sixteen positions. A lane has index 4 · head + quarter in the matrix
// layout: `own_head`, `quarter`. The other side is f16. Queries and weights are therefore split into the
// nearest f16 value (`most`) and an f16 remainder (`rest`), and both products are added. Targets with f16 MMA
// replace these bodies.
//
// `add_scores`: `key` is 8 channels of position `own_head` of eight; `most` and `rest` are the same 8
// channels of head `own_head`. A lane's sums are the scores of its head with positions 2 · quarter and the
// next. Lanes of a head have different channels.
//
// `add_weighted`: `most` and `rest` are weights of head `own_head` at positions 2 · quarter, the next, and
// eight after each; `value` is channels 8 · own_head to 8 · own_head + 7 of the same four positions. Sum i of
// a lane is for its head and channels 16 · quarter + i and eight after it.
#ifndef OWN_HEAD_PRODUCTS
inline ushort lane_of_head(uint head, uint quarter) {
    return ushort((head & 4u) << 2u | (head & 3u) << 1u | (quarter & 2u) << 2u | (quarter & 1u));
}

inline float4 halves_of_lane(half4 values, ushort lane) {
    const uint2 words = as_type<uint2>(values);
    return float4(as_type<half4>(uint2(simd_shuffle(words.x, lane), simd_shuffle(words.y, lane))));
}

inline void add_scores(
    thread float4& sums, thread const half4* key, thread const half4* most, thread const half4* rest, uint own_head,
    uint quarter) {
    for (uint q = 0u; q < 4u; q++) {
        for (uint i = 0u; i < 2u; i++) {
            const ushort source_lane = lane_of_head(own_head, q);
            const float4 query = halves_of_lane(most[i], source_lane);
            const float4 left = halves_of_lane(rest[i], source_lane);
            const float4 first = halves_of_lane(key[i], lane_of_head(2u * quarter, q));
            const float4 second = halves_of_lane(key[i], lane_of_head(2u * quarter + 1u, q));
            sums += float4(dot(query, first), dot(query, second), dot(left, first), dot(left, second));
        }
    }
}

inline void add_weighted(
    thread float4* sums, thread const half4* value, half4 most, half4 rest, uint own_head, uint quarter) {
    for (uint q = 0u; q < 4u; q++) {
        const ushort source_lane = lane_of_head(own_head, q);
        const float4 weight = halves_of_lane(most, source_lane);
        const float4 left = halves_of_lane(rest, source_lane);
        for (uint p = 0u; p < 4u; p++) {
            for (uint i = 0u; i < 2u; i++) {
                const float4 first = halves_of_lane(value[2u * p + i], lane_of_head(2u * quarter, q));
                const float4 second = halves_of_lane(value[2u * p + i], lane_of_head(2u * quarter + 1u, q));
                for (uint c = 0u; c < 4u; c++) {
                    sums[4u * i + c] +=
                        float4(weight[p] * first[c], weight[p] * second[c], left[p] * first[c], left[p] * second[c]);
                }
            }
        }
    }
}
#endif
