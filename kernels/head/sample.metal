// Samples a token id from each row's {{ vocabulary }} logits, bitwise identical to the runtime's
// `sampler.rs`. One threadgroup per row.
//
// Filtering (top-k, top-p, min-p) and sampling use the same search: in descending order of keys, find the
// first key at which the sum of weights reaches a target. The key is found 8 bits at a time, from the sum of
// weights for each digit.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* logits [[buffer({{ slot() }})]],
    device const uint* draws [[buffer({{ slot() }})]],
    device uint* ids [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint best_keys[{{ simdgroups }}];
    threadgroup uint best_ids[{{ simdgroups }}];
    // Sums by digit, followed by the total kept weight of two of the searches.
    threadgroup atomic_uint low[258];
    threadgroup atomic_uint high[258];
    threadgroup ulong sums[32];
    threadgroup ulong needed_here[1];
    threadgroup uint digit_here[1];
    threadgroup uint exact_here[1];
    device const float* source = logits + row * {{ vocabulary }}u;
    device const uint* draw = draws + row * 8u;
    if (thread_id < 2u) {
        atomic_store_explicit(&low[256u + thread_id], 0u, memory_order_relaxed);
        atomic_store_explicit(&high[256u + thread_id], 0u, memory_order_relaxed);
    }

{% include "head/parts/block_argmax" %}
    // A key is the weight followed by the inverted id. Ids of weight 0 are never kept.
    const float scale = as_type<float>(draw[0]);
    ulong least = {{ id_mask }}ul + 1ul;
    ulong found = {{ id_mask }}ul;
    const bool is_greedy = draw[0] == 0u;
    // Logits above minus infinity.
    const bool weighs = highest > 0x007fffffu;
    const bool is_drawn = weighs && !is_greedy;
    const float top = is_drawn ? source[lowest_id] : 0.0f;

    // First the heaviest ids, then those within a fraction of the total weight, then one of these.
    for (uint search = is_drawn ? 0u : 3u; search < 3u; search++) {
        const bool by_weight = search != 0u;
        const bool is_last = search == 2u;
        const uint setting = is_last ? 1u : draw[1u + search];
        if (setting == 0u) {
            continue;
        }
        ulong needed = setting;
        if (by_weight) {
            const ulong lightest = is_last ? ulong(draw[3]) << {{ id_bits }}u : 0ul;
            least = max(least, lightest);
            ulong sum = 0ul;
            for (uint id = thread_id; id < {{ vocabulary }}u; id += {{ threads }}u) {
                const uint weight = weight_of(source[id], top, scale);
                const ulong key = (ulong(weight) << {{ id_bits }}u) | ({{ id_mask }}ul - id);
                const bool is_kept = key >= least;
                sum += is_kept ? weight : 0u;
            }
            add_to(&low[255u + search], &high[255u + search], sum);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const ulong total = sum_of(&low[255u + search], &high[255u + search]);
            needed = is_last ? high_word(random_bits(draw[4], draw[5], draw[6]), total) + 1ul : fraction_of(total, setting);
        }

        found = 0ul;
        bool goes_on = true;
        for (uint shift = is_last ? {{ id_bits }}u : {{ id_bits + 32 }}u; goes_on && shift > 0u;) {
            shift -= 8u;
            for (uint digit = thread_id; digit < 256u; digit += {{ threads }}u) {
                atomic_store_explicit(&low[digit], 0u, memory_order_relaxed);
                atomic_store_explicit(&high[digit], 0u, memory_order_relaxed);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint id = thread_id; id < {{ vocabulary }}u; id += {{ threads }}u) {
                const uint weight = weight_of(source[id], top, scale);
                const ulong key = (ulong(weight) << {{ id_bits }}u) | ({{ id_mask }}ul - id);
                const bool is_kept = key >= least;
                // Most keys have digit 0. They are not summed: if no other digit matches, it is 0.
                const ulong digit = ((is_last ? key & {{ id_mask }}ul : key) ^ found) >> shift;
                const bool is_added = is_kept && digit - 1ul < 255ul;
                if (is_added) {
                    add_to(&low[digit], &high[digit], by_weight ? weight : 1u);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);

            // Each lane has eight digits, the first lane the largest.
            if (simdgroup_id == 0u) {
                const uint last = 248u - 8u * lane;
                ulong sum = 0ul;
                for (uint i = 0u; i < 8u; i++) {
                    sum += sum_of(&low[last + i], &high[last + i]);
                }
                sums[lane] = sum;
                simdgroup_barrier(mem_flags::mem_threadgroup);
                ulong before = 0ul;
                for (uint other = 0u; other < lane; other++) {
                    before += sums[other];
                }
                const bool is_here = before < needed && (needed <= before + sum || lane == 31u);
                if (is_here) {
                    ulong left = needed - before;
                    uint digit = last + 7u;
                    ulong value = sum_of(&low[digit], &high[digit]);
                    while (digit > 0u && value < left) {
                        left -= value;
                        digit -= 1u;
                        value = sum_of(&low[digit], &high[digit]);
                    }
                    needed_here[0] = left;
                    digit_here[0] = digit;
                    exact_here[0] = uint(value == left);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            needed = needed_here[0];
            found |= ulong(digit_here[0]) << shift;
            // If all ids with these digits are kept, the remaining digits are only needed if one of the ids
            // is the target.
            goes_on = is_last || exact_here[0] == 0u;
        }
        least = is_last ? least : max(least, found);
    }

    if (thread_id == 0u) {
        const uint first = highest == 0u ? 0u : lowest_id;
        ids[row] = is_greedy ? first : uint({{ id_mask }}ul - found);
    }
}
