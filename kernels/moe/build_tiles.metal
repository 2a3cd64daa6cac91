// Pairs of a row and one of its {{ chosen }} experts, `row * {{ chosen }} + place`, sorted by expert and then
// by row. And tiles of up to {{ tile_rows }} pairs of one expert: expert, index of its first pair, number of
// pairs.
//
// A thread has one expert, and reads all routes twice: to count its pairs, and to write them. The result does
// not depend on the order of threads. An expert without rows has no tile. Each of {{ experts }} experts has
// at most one partial tile, which bounds the number of tiles; unused tiles have no pairs.
struct {{ args }} {
    uint rows;
};

// grid: 1
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const uint* routes [[buffer({{ slot() }})]],
    device uint* pairs [[buffer({{ slot() }})]],
    device uint* tiles [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    threadgroup uint counts[{{ threads }}];
    uint count = 0u;
    for (uint row = 0u; row < args.rows; row++) {
        #pragma unroll
        for (uint place = 0u; place < {{ chosen }}u; place++) {
            count += routes[row * {{ 2 * chosen }}u + place] == thread_id ? 1u : 0u;
        }
    }
    counts[thread_id] = count;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // First pair and first tile of this expert, and the end of all tiles.
    uint first_pair = 0u;
    uint first_tile = 0u;
    uint end = 0u;
    for (uint expert = 0u; expert < {{ experts }}u; expert++) {
        const uint of_expert = counts[expert];
        const uint tiles_of_expert = (of_expert + {{ tile_rows - 1 }}u) / {{ tile_rows }}u;
        first_pair += expert < thread_id ? of_expert : 0u;
        first_tile += expert < thread_id ? tiles_of_expert : 0u;
        end += tiles_of_expert;
    }

    for (uint begin = 0u; begin < count; begin += {{ tile_rows }}u) {
        device uint* tile = tiles + (first_tile + begin / {{ tile_rows }}u) * 3u;
        tile[0] = thread_id;
        tile[1] = first_pair + begin;
        tile[2] = min(count - begin, {{ tile_rows }}u);
    }
    const uint bound = (args.rows * {{ chosen }}u + {{ experts * (tile_rows - 1) }}u) / {{ tile_rows }}u;
    for (uint i = end * 3u + thread_id; i < bound * 3u; i += {{ threads }}u) {
        tiles[i] = 0u;
    }

    uint next = first_pair;
    for (uint row = 0u; row < args.rows; row++) {
        #pragma unroll
        for (uint place = 0u; place < {{ chosen }}u; place++) {
            if (routes[row * {{ 2 * chosen }}u + place] == thread_id) {
                pairs[next] = row * {{ chosen }}u + place;
                next++;
            }
        }
    }
}
