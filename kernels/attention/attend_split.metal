{% set vector = "float4" if quantised else element ~ "4" %}
{% set head = "min(first + h, " ~ (group - 1) ~ "u)" if idle_heads else "(first + h)" if head_parts > 1 else "h" %}
{% set past = lanes * 8 > pitch %}
{% set place = "place" if past else "channel" %}
{% set room = "args.capacity" if ring else "args.context" %}
{% set around = " % " ~ ring ~ "u" if ring else "" %}
{% macro load_block() %}
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            const uint p = min(start + {{ at_once }}u * u + offset, end - 1u);
{% if quantised %}
            device const uchar* record = cached_keys + ulong(p{{ around }}) * {{ record }}ul;
            key[u][0] = {{ load }}(record, channel, {{ width }}u);
            key[u][1] = {{ load }}(record, channel + 4u, {{ width }}u);
{% else %}
            {{ load }}(cached_keys + ulong(p{{ around }}) * {{ width }}ul, channel{{ bound }}, key[u]);
{% endif %}
        }
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            const uint p = min(start + {{ at_once }}u * u + offset, end - 1u);
{% if quantised %}
            device const uchar* record = cached_values + ulong(p{{ around }}) * {{ record }}ul;
            value[u][0] = {{ load }}(record, channel, {{ width }}u);
            value[u][1] = {{ load }}(record, channel + 4u, {{ width }}u);
{% else %}
            {{ load }}(cached_values + ulong(p{{ around }}) * {{ width }}ul, channel{{ bound }}, value[u]);
{% endif %}
        }
{% endmacro %}
// softmax({{ scale }} * q k) v of few rows. A threadgroup takes one share of the positions that a row sees, and the {{ group }} query
// heads that read one key head.
//
// A simdgroup takes blocks of {{ block }} positions, straight from memory to registers. Lanes that share a position: {{ lanes }}, with 8
// channels each; what they load serves {{ heads_each }} heads. Nobody waits for others before the end, where simdgroups join their
// sums. The softmax is online: sums are scaled down whenever the maximum grows. It takes powers of 2, and scores accordingly.
{% if ring %}
//
// The cache is a ring: position p lies at p % {{ ring }}.
{% endif %}
{% if prologue %}
//
{% if appends %}
// Before that the threadgroup prepares its heads; the one that has the last share prepares the row's own key as well, gives
// key and value to the cache, and begins with their score, so that nothing written here is read here.
{% else %}
// Before that the threadgroup prepares its heads. The row's own key and value are in the cache.
{% endif %}
{% if values_are_keys %}
// Values are made of the heads that keys are made of.
{% endif %}
{% if appends and prologue.norm and prologue.norm.values %}
// Values are normed, too, without a gain.
{% endif %}
{% if pairs %}

// Radians a position, for each pair of channels that turns.
{% if long and not stretched %}
// After them those of contexts of more than {{ long }} positions.
{% endif %}
constant float {{ name }}_frequencies[{{ table_size }}] = {
{% for line in table %}
    {{ line }},
{% endfor %}
};
{% endif %}

{% endif %}
struct {{ args }} {
    uint rows;
    uint context;
{% if ring %}
    uint capacity;
{% endif %}
    uint splits;
};

// grid: splits, {{ key_heads }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% if appends %}
    device const float* qkv [[buffer({{ slot() }})]],
{% if prologue.norm %}
    device const float* query_gain [[buffer({{ slot() }})]],
    device const float* key_gain [[buffer({{ slot() }})]],
{% endif %}
    device {{ element }}* keys [[buffer({{ slot() }})]],
    device {{ element }}* values [[buffer({{ slot() }})]],
{% else %}
    device const float* q [[buffer({{ slot() }})]],
{% if prologue and prologue.norm %}
    device const float* query_gain [[buffer({{ slot() }})]],
{% endif %}
    device const {{ element }}* keys [[buffer({{ slot() }})]],
    device const {{ element }}* values [[buffer({{ slot() }})]],
{% endif %}
{% if sinks %}
    device const float* sinks [[buffer({{ slot() }})]],
{% endif %}
{% if gates %}
    device const float* gates [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* partials [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if staged %}
    threadgroup float shared[{{ shared }}];  // queries, {{ pitch }} floats a head; at last sums, {{ sums_pitch }} a simdgroup
{% else %}
    threadgroup float shared[{{ shared }}];  // sums at last, {{ sums_pitch }} floats a simdgroup
{% endif %}
    const uint split = group.x;
    const uint row = group.z;
    const uint first_head = row * {{ query_heads }}u + group.y * {{ group }}u;

    // This share of the positions that the row sees; it may be empty.
    const uint position = positions[row];
{% if window %}
    const uint seen = min(position + 1u, {{ window }}u);
    const uint oldest = position + 1u - seen;
    const uint begin = oldest + seen * split / args.splits;
{% if appends %}
    const bool newest = split + 1u == args.splits;
    const uint end = newest ? position : oldest + seen * (split + 1u) / args.splits;
{% else %}
    const uint end = oldest + seen * (split + 1u) / args.splits;
{% endif %}
{% else %}
    const uint begin = (position + 1u) * split / args.splits;
{% if appends %}
    const bool newest = split + 1u == args.splits;
    const uint end = newest ? position : (position + 1u) * (split + 1u) / args.splits;
{% else %}
    const uint end = (position + 1u) * (split + 1u) / args.splits;
{% endif %}
{% endif %}
    const ulong cached_head = ulong(slots[row]) * {{ key_heads }}ul + ulong(group.y);
    const ulong cached = cached_head * ulong({{ room }}) * {{ record }}ul;
    device const {{ element }}* cached_keys = keys + cached;
    device const {{ element }}* cached_values = values + cached;

    // This lane's 8 channels, and which of {{ at_once }} neighbouring positions it has; this simdgroup's positions{{ " and heads" if head_parts > 1 else "" }}.
    const uint channel = lane % {{ lanes }}u * 8u;
    const uint offset = lane / {{ lanes }}u;
{% if head_parts > 1 %}
    const uint first = simdgroup_id % {{ head_parts }}u * {{ heads_each }}u;
    const uint part = simdgroup_id / {{ head_parts }}u;
{% else %}
    const uint part = simdgroup_id;
{% endif %}

    // The first keys and values are under way while queries are prepared. Positions past the last repeat it.
    {{ vector }} key[{{ loads }}][2];
    {{ vector }} value[{{ loads }}][2];
    uint start = begin + part * {{ block }}u;
    bool more = start < end;
    if (more) {
{{ load_block() }}    }

{% if prologue %}
{% if not appends %}
    // Prepare a head a simdgroup.
{% elif prologue.norm and prologue.norm.values %}
    // Prepare a head a simdgroup: the queries; with the last share, the key and the value, which does not turn.
{% else %}
    // Prepare a head a simdgroup: the queries; with the last share, the key and the value, which stays as it is.
{% endif %}
{% if stretched %}
    // A context of more than {{ long }} positions slows pair k by e^(slope * k).
    const float stretch = {{ stretched.factor }} * (float(args.context) / {{ stretched.beyond }}) - {{ stretched.less }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ stretched.slower }} : 0.0f;
{% elif long %}
    // Where the context's own frequencies begin.
    const uint own = args.context > {{ long }}u ? {{ pairs }}u : 0u;
{% endif %}
{% if appends %}
    const uint prepared = newest ? {{ group + 2 }}u : {{ group }}u;
    for (uint h = simdgroup_id; h < prepared; h += {{ simdgroups }}u) {
        const bool is_query = h < {{ group }}u;
        const bool is_value = h == {{ group + 1 }}u;
{% if values_are_keys %}
        const uint head = is_query ? group.y * {{ group }}u + h : {{ query_heads }}u + group.y;
{% else %}
        const uint head = is_query ? group.y * {{ group }}u + h : {{ query_heads }}u + (h - {{ group }}u) * {{ key_heads }}u + group.y;
{% endif %}
        device const float* source = qkv + (row * {{ row_heads }}u + head) * {{ width }}u;
{% if prologue.norm %}
        device const float* gain = is_query ? query_gain : key_gain;
{% endif %}
        device {{ element }}* target = (is_value ? values : keys) + cached + ulong(position{{ around }}) * {{ record }}ul;
{% else %}
    for (uint h = simdgroup_id; h < {{ group }}u; h += {{ simdgroups }}u) {
        device const float* source = q + (first_head + h) * {{ width }}u;
{% if prologue.norm %}
        device const float* gain = query_gain;
{% endif %}
{% endif %}
        uint one[{{ pairs_each }}];
        uint other[{{ pairs_each }}];
        float2 channels[{{ pairs_each }}];
{% if prologue.norm %}
        float squares = 0.0f;
{% endif %}
        #pragma unroll
        for (uint i = 0u; i < {{ pairs_each }}u; i++) {
            const uint k = lane + 32u * i;
            one[i] = {{ one }};
            other[i] = {{ other }};
{% if idle_pairs %}
            channels[i] = k < {{ half }}u ? float2(source[one[i]], source[other[i]]) : float2(0.0f);
{% else %}
            channels[i] = float2(source[one[i]], source[other[i]]);
{% endif %}
{% if prologue.norm %}
            squares += dot(channels[i], channels[i]);
{% endif %}
        }
{% if prologue.norm %}
        const float factor = rsqrt(simd_sum(squares) / {{ width_float }} + {{ prologue.norm.epsilon }});
{% endif %}
        #pragma unroll
        for (uint i = 0u; i < {{ pairs_each }}u; i++) {
{% if pairs or idle_pairs %}
            const uint k = lane + 32u * i;
{% endif %}
{% if idle_pairs %}
            if (k >= {{ half }}u) {
                continue;
            }
{% endif %}
{% if not appends %}
{% if prologue.norm and not prologue.norm.turned %}
            channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
{% if pairs == half %}
            channels[i] = turn(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
{% elif pairs %}
            if (k < {{ pairs }}u) {
                channels[i] = turn(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
            }
{% endif %}
{% if prologue.norm and prologue.norm.turned %}
            channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
{% else %}
{% if prologue.norm and prologue.norm.values %}
            if (is_value) {
                channels[i] *= factor;
            }
{% endif %}
{% if prologue.norm and pairs < half and not prologue.norm.turned %}
            if (!is_value) {
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
            }
{% endif %}
{% if pairs %}
            if (!is_value{% if pairs < half %} && k < {{ pairs }}u{% endif %}) {
{% if prologue.norm and pairs == half and not prologue.norm.turned %}
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
                channels[i] = turn(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
{% if prologue.norm and pairs == half and prologue.norm.turned %}
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
            }
{% endif %}
{% if prologue.norm and pairs < half and prologue.norm.turned %}
            if (!is_value) {
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
            }
{% endif %}
{% endif %}
{% if appends and not quantised %}
            if (!is_query) {
                // What the cache has of it, here and there.
                const {{ element }}2 kept = {{ element }}2(channels[i]);
                target[one[i]] = kept.x;
                target[other[i]] = kept.y;
                channels[i] = float2(kept);
            }
{% endif %}
            shared[h * {{ pitch }}u + one[i]] = channels[i].x;
            shared[h * {{ pitch }}u + other[i]] = channels[i].y;
        }
{% if appends and quantised %}
        if (!is_query) {
            // What the cache has of it, here and there.
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint block = 0u; block < {{ width // 32 }}u; block++) {
                half scale;
                const char code = encode32(shared[h * {{ pitch }}u + block * 32u + lane], &scale);
                target[block * 32u + lane] = as_type<uchar>(code);
                if (lane == 0u) {
                    *(device half*)(target + {{ width }}u + block * 2u) = scale;
                }
                shared[h * {{ pitch }}u + block * 32u + lane] = float(scale) * float(code);
            }
        }
{% endif %}
{% if pitch != width %}
        // Channels past the last are zeros.
        if (lane < {{ pitch - width }}u) {
            shared[h * {{ pitch }}u + {{ width }}u + lane] = 0.0f;
        }
{% endif %}
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

{% elif staged %}
{% if pitch != width %}
    // Stage the queries. Channels past the last are zeros.
{% else %}
    // Stage the queries.
{% endif %}
    for (uint i = thread_id; i < {{ group * pitch // query_step }}u; i += {{ threads }}u) {
{% if pitch != width %}
        const uint c = i % {{ pitch // query_step }}u * {{ query_step }}u;
        device const float* source = q + (first_head + i / {{ pitch // query_step }}u) * {{ width }}u + c;
        const float{{ query_step }} value = c < {{ width }}u ? *(device const float{{ query_step }}*)source : float{{ query_step }}(0.0f);
        *(threadgroup float{{ query_step }}*)(shared + i * {{ query_step }}u) = value;
{% else %}
        ((threadgroup float4*)shared)[i] = ((device const float4*)(q + first_head * {{ width }}u))[i];
{% endif %}
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

{% endif %}
{% if past and staged %}
    // Of a query a lane reads channels that exist; what they meet is 0.
    const uint place = min(channel, {{ pitch - 8 }}u);
{% endif %}
    float maximum[{{ heads_each }}];
    float total[{{ heads_each }}];
    float4 sums[{{ heads_each }}][2];
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
        maximum[h] = -1.0e38f;
        total[h] = 0.0f;
        sums[h][0] = float4(0.0f);
        sums[h][1] = float4(0.0f);
    }
{% if sinks %}

    // A sink is a score without a value. Totals are added over {{ at_once }} lanes in the end, so only one of them has it.
    if (split == 0u && part == 0u) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            maximum[h] = {{ base_2 }} * sinks[group.y * {{ group }}u + {{ head }}];
            total[h] = offset == 0u ? 1.0f : 0.0f;
        }
    }
{% endif %}
{% if appends %}

    // The row's own position.
    if (newest && part == 0u) {
        threadgroup const float4* key = (threadgroup const float4*)(shared + {{ group * pitch }}u + {{ place }});
        threadgroup const float4* value = (threadgroup const float4*)(shared + {{ (group + 1) * pitch }}u + {{ place }});
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            threadgroup const float4* query = (threadgroup const float4*)(shared + {{ head }} * {{ pitch }}u + {{ place }});
            float score = dot(query[0], key[0]) + dot(query[1], key[1]);
{% if lanes * 8 != pitch %}
            score = channel < {{ pitch }}u ? score : 0.0f;
{% endif %}
{% for distance in within %}
            score += simd_shuffle_xor(score, ushort({{ distance }}));
{% endfor %}
{% if softcap %}
            score = {{ base_2 }} * softcap(score * {{ scale }}, {{ softcap }});
{% else %}
            score *= {{ scale_base_2 }};
{% endif %}
{% if sinks %}
            const float highest = max(maximum[h], score);
            const float weight = offset == 0u ? exp2(score - highest) : 0.0f;
            total[h] = total[h] * exp2(maximum[h] - highest) + weight;
            maximum[h] = highest;
{% else %}
            const float weight = offset == 0u ? 1.0f : 0.0f;
            total[h] = weight;
            maximum[h] = score;
{% endif %}
            sums[h][0] = weight * value[0];
            sums[h][1] = weight * value[1];
        }
    }
{% endif %}

    while (more) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            // Scores: a lane's channels, then those of all that share the position.
{% if staged %}
            threadgroup const float4* query = (threadgroup const float4*)(shared + {{ head }} * {{ pitch }}u + {{ place }});
{% else %}
            float4 query[2];
            {{ query_load }}(q + (first_head + {{ head }}) * {{ width }}u, channel{{ bound }}, query);
{% endif %}
            float scores[{{ loads }}];
            float highest = maximum[h];
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                float score = dot(float4(key[u][0]), query[0]) + dot(float4(key[u][1]), query[1]);
{% for distance in within %}
                score += simd_shuffle_xor(score, ushort({{ distance }}));
{% endfor %}
{% if softcap %}
                score = {{ base_2 }} * softcap(score * {{ scale }}, {{ softcap }});
{% else %}
                score *= {{ scale_base_2 }};
{% endif %}
                scores[u] = start + {{ at_once }}u * u + offset < end ? score : -1.0e38f;
                highest = max(highest, scores[u]);
            }
{% for distance in across %}
            highest = max(highest, simd_shuffle_xor(highest, ushort({{ distance }})));
{% endfor %}

            // Sums of values, weighted by how far a score is below the maximum.
            const float keep = exp2(maximum[h] - highest);
            maximum[h] = highest;
            total[h] *= keep;
            sums[h][0] *= keep;
            sums[h][1] *= keep;
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                const float weight = exp2(scores[u] - highest);
                total[h] += weight;
                sums[h][0] += weight * float4(value[u][0]);
                sums[h][1] += weight * float4(value[u][1]);
            }
        }

        start += {{ position_parts * block }}u;
        more = start < end;
        if (more) {
{{ load_block() | indent(4, true) }}
        }
    }

    // Join: the lanes that have other positions, then the simdgroups that do.
    const bool alone = args.splits == 1u;
    #pragma unroll
    for (uint done = 0u; done < {{ heads_each }}u; done += {{ joined }}u) {
        // What is in the way here has been read: queries, or other heads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (uint j = 0u; j < {{ joined }}u; j++) {
            const uint h = done + j;
{% for distance in across %}
            total[h] += simd_shuffle_xor(total[h], ushort({{ distance }}));
            #pragma unroll
            for (uint c = 0u; c < 4u; c++) {
                sums[h][0][c] += simd_shuffle_xor(sums[h][0][c], ushort({{ distance }}));
                sums[h][1][c] += simd_shuffle_xor(sums[h][1][c], ushort({{ distance }}));
            }
{% endfor %}
            threadgroup float* own = shared + (simdgroup_id * {{ joined }}u + j) * {{ sums_pitch }}u;
{% if pitch < 256 %}
            if (lane < {{ pitch // 8 }}u) {
                *(threadgroup float4*)(own + channel) = sums[h][0];
                *(threadgroup float4*)(own + channel + 4u) = sums[h][1];
            }
{% else %}
            *(threadgroup float4*)(own + channel) = sums[h][0];
            *(threadgroup float4*)(own + channel + 4u) = sums[h][1];
{% endif %}
            if (lane == 0u) {
                own[{{ pitch }}] = maximum[h];
                own[{{ pitch + 1 }}] = total[h];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // A thread finishes a channel of a head.
        for (uint i = thread_id; i < {{ head_parts * joined * width }}u; i += {{ threads }}u) {
            const uint c = i % {{ width }}u;
            const uint of = i / {{ width }}u;
            threadgroup const float* theirs = shared + of * {{ sums_pitch }}u;
            float highest = -1.0e38f;
            #pragma unroll
            for (uint p = 0u; p < {{ position_parts }}u; p++) {
                highest = max(highest, theirs[p * {{ head_parts * joined * sums_pitch }}u + {{ pitch }}u]);
            }
            float sum = 0.0f;
            float whole = 0.0f;
            #pragma unroll
            for (uint p = 0u; p < {{ position_parts }}u; p++) {
                const float weight = exp2(theirs[{{ pitch }}] - highest);
                sum += weight * theirs[c];
                whole += weight * theirs[{{ pitch + 1 }}];
                theirs += {{ head_parts * joined * sums_pitch }}u;
            }
{% if joined == heads_each %}
            const uint head = of;
{% else %}
            const uint head = of / {{ joined }}u * {{ heads_each }}u + done + of % {{ joined }}u;
{% endif %}
{% if idle_heads %}
            if (head >= {{ group }}u) {
                continue;
            }
{% endif %}
            // The only share is the result{{ ", gated" if gates else "" }}; one of several is written with what joining them needs.
            if (alone) {
{% if gates %}
                const float gate = gates[row * {{ gates.pitch }}u + {{ gates.first }}u + (group.y * {{ group }}u + head) * {{ width }}u + c];
                heads[(first_head + head) * {{ width }}u + c] = sum / whole * sigmoid(gate);
{% else %}
                heads[(first_head + head) * {{ width }}u + c] = sum / whole;
{% endif %}
            } else {
                device float* share = partials + ((first_head + head) * args.splits + split) * {{ width + 2 }}u;
                share[c] = sum;
                if (c == 0u) {
                    share[{{ width }}] = highest / {{ base_2 }};
                    share[{{ width + 1 }}] = whole;
                }
            }
        }
    }
}
