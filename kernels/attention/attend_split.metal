{% set vector = element ~ step %}
// softmax({{ scale }} * q k) v of few rows. A threadgroup takes one share of a row's cache and the {{ group }} query heads that
// read the same key head, so that a cached byte is loaded once for all of them.
//
// Keys, then values, of {{ tile }} positions at a time are staged in threadgroup memory. Scores: a lane has a position.
// Sums of values: a lane has channels. The softmax is online: sums are scaled down whenever the maximum grows.
struct {{ args }} {
    uint rows;
    uint context;
    uint splits;
};

// grid: splits, {{ key_heads }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* q [[buffer({{ slot() }})]],
    device const {{ element }}* keys [[buffer({{ slot() }})]],
    device const {{ element }}* values [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* partials [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    // Positions are {{ pitch }} elements apart, so that neighbours start in other banks.
    threadgroup {{ element }} staged[{{ tile * pitch }}];
    const uint split = group.x;
    const uint row = group.z;

    // This share of positions 0..=position; it may be empty.
    const uint length = positions[row] + 1u;
    const uint begin = length * split / args.splits;
    const uint end = length * (split + 1u) / args.splits;
    const ulong cached_head = ulong(slots[row]) * {{ key_heads }}ul + ulong(group.y);
    const ulong cached = cached_head * ulong(args.context) * {{ width }}ul;

{% if idle_heads %}
    // This simdgroup's heads. The last simdgroup has fewer, and computes its last head more than once.
{% else %}
    // This simdgroup's heads.
{% endif %}
    const uint first = simdgroup_id * {{ heads_each }}u;
    uint head[{{ heads_each }}];
    float maximum[{{ heads_each }}];
    float total[{{ heads_each }}];
    {{ sum }} sums[{{ heads_each }}][{{ sums_each }}];
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
{% if idle_heads %}
        head[h] = row * {{ query_heads }}u + group.y * {{ group }}u + min(first + h, {{ group - 1 }}u);
{% else %}
        head[h] = row * {{ query_heads }}u + group.y * {{ group }}u + first + h;
{% endif %}
        maximum[h] = -1.0e38f;
        total[h] = 0.0f;
        #pragma unroll
        for (uint j = 0u; j < {{ sums_each }}u; j++) {
            sums[h][j] = {{ sum }}(0.0f);
        }
    }
    uint channel[{{ sums_each }}];
    #pragma unroll
    for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if ragged %}
        channel[j] = min(lane + 32u * j, {{ width - 1 }}u);
{% elif sum == "float2" %}
        channel[j] = 2u * (lane + 32u * j);
{% else %}
        channel[j] = lane + 32u * j;
{% endif %}
    }

    for (uint start = begin; start < end; start += {{ tile }}u) {
        const uint count = min(end - start, {{ tile }}u);
        const ulong source = cached + ulong(start) * {{ width }}ul;

        // Stage keys.
        for (uint i = thread_id; i < count * {{ width // step }}u; i += {{ threads }}u) {
            const uint place = i / {{ width // step }}u * {{ pitch }}u + i % {{ width // step }}u * {{ step }}u;
            *(threadgroup {{ vector }}*)(staged + place) = ((device const {{ vector }}*)(keys + source))[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% if tile == 32 %}
        // Scores: the lane's position against every head.
        const bool live = lane < count;
        const uint place = min(lane, count - 1u) * {{ pitch }}u;
        float scores[{{ heads_each }}] = {0.0f};
        for (uint c = 0u; c < {{ width }}u; c += {{ step }}u) {
{% else %}
        // Scores: the lane's position against every head. {{ 32 // tile }} lanes share a position, each has a part of the channels.
        const bool live = lane < count;
        const uint place = min(lane % {{ tile }}u, count - 1u) * {{ pitch }}u;
        float scores[{{ heads_each }}] = {0.0f};
        for (uint c = lane / {{ tile }}u * {{ step }}u; c < {{ width }}u; c += {{ 32 // tile * step }}u) {
{% endif %}
            const float{{ step }} key = float{{ step }}(*(threadgroup const {{ vector }}*)(staged + place + c));
            #pragma unroll
            for (uint h = 0u; h < {{ heads_each }}u; h++) {
                scores[h] += dot(key, *(device const float{{ step }}*)(q + head[h] * {{ width }}u + c));
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Stage values where the keys were, and meanwhile turn scores into weights.
        for (uint i = thread_id; i < count * {{ width // step }}u; i += {{ threads }}u) {
            const uint place = i / {{ width // step }}u * {{ pitch }}u + i % {{ width // step }}u * {{ step }}u;
            *(threadgroup {{ vector }}*)(staged + place) = ((device const {{ vector }}*)(values + source))[i];
        }
        float weights[{{ heads_each }}];
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            float score = scores[h];
{% for distance in distances %}
            score += simd_shuffle_xor(score, ushort({{ distance }}));
{% endfor %}
            score = live ? score * {{ scale }} : -1.0e38f;
            const float highest = max(maximum[h], simd_max(score));
            const float keep = exp(maximum[h] - highest);
            weights[h] = live ? exp(score - highest) : 0.0f;
            total[h] = total[h] * keep + simd_sum(weights[h]);
            maximum[h] = highest;
            #pragma unroll
            for (uint j = 0u; j < {{ sums_each }}u; j++) {
                sums[h][j] *= keep;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Sums of values.
        for (uint p = 0u; p < count; p++) {
            {{ sum }} value[{{ sums_each }}];
            #pragma unroll
            for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if sum == "float2" %}
                value[j] = float2(*(threadgroup const {{ element }}2*)(staged + p * {{ pitch }}u + channel[j]));
{% else %}
                value[j] = float(staged[p * {{ pitch }}u + channel[j]]);
{% endif %}
            }
            #pragma unroll
            for (uint h = 0u; h < {{ heads_each }}u; h++) {
                const float weight = simd_shuffle(weights[h], ushort(p));
                #pragma unroll
                for (uint j = 0u; j < {{ sums_each }}u; j++) {
                    sums[h][j] += weight * value[j];
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The only share is the result; one of several is written with what joining them needs.
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
        const bool alone = args.splits == 1u;
        device float* share = partials + (head[h] * args.splits + split) * {{ width + 2 }}u;
        device float* target = alone ? heads + head[h] * {{ width }}u : share;
        const float divisor = alone ? total[h] : 1.0f;
        #pragma unroll
        for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if ragged %}
            if (lane + 32u * j < {{ width }}u) {
                target[channel[j]] = sums[h][j] / divisor;
            }
{% elif sum == "float2" %}
            *(device float2*)(target + channel[j]) = sums[h][j] / divisor;
{% else %}
            target[channel[j]] = sums[h][j] / divisor;
{% endif %}
        }
        if (lane == 0u && !alone) {
            share[{{ width }}] = maximum[h];
            share[{{ width + 1 }}] = total[h];
        }
    }
}
