{# Stages queries in threadgroup memory, and the row's own key and value if this kernel prepares them. #}
{% if appends %}
    wait_for_others();

{% endif %}
{% if prologue %}
{% if not appends %}
    // Each simdgroup prepares one head at a time.
{% elif prologue.norm and prologue.norm.values %}
    // Each simdgroup prepares one head at a time: the queries; with the last split, the key and the value,
    // which has no RoPE.
{% else %}
    // Each simdgroup prepares one head at a time: the queries; with the last split, the key and the value,
    // which is copied.
{% endif %}
{% if dynamic_ntk %}
    // For contexts longer than {{ long }} positions pair k rotates at e^(slope * k) times its frequency.
    const float stretch = {{ dynamic_ntk.factor }} * (float(args.context) / {{ dynamic_ntk.original_context }}) - {{ dynamic_ntk.factor_minus_1 }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ dynamic_ntk.last_pair }} : 0.0f;
{% elif long %}
    // Offset of the frequencies for this context length.
    const uint table_offset = args.context > {{ long }}u ? {{ pairs }}u : 0u;
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
        device {{ element }}* target = (is_value ? values : keys) + cached + ulong(position{{ modulo }}) * {{ kv_stride }}ul;
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
{% if prologue.norm and not prologue.norm.after_rope %}
            channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
{% if pairs == half %}
            channels[i] = rope(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
{% elif pairs %}
            if (k < {{ pairs }}u) {
                channels[i] = rope(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
            }
{% endif %}
{% if prologue.norm and prologue.norm.after_rope %}
            channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
{% else %}
{% if prologue.norm and prologue.norm.values %}
            if (is_value) {
                channels[i] *= factor;
            }
{% endif %}
{% if prologue.norm and pairs < half and not prologue.norm.after_rope %}
            if (!is_value) {
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
            }
{% endif %}
{% if pairs %}
            if (!is_value{% if pairs < half %} && k < {{ pairs }}u{% endif %}) {
{% if prologue.norm and pairs == half and not prologue.norm.after_rope %}
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
                channels[i] = rope(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
{% if prologue.norm and pairs == half and prologue.norm.after_rope %}
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
            }
{% endif %}
{% if prologue.norm and pairs < half and prologue.norm.after_rope %}
            if (!is_value) {
                channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
            }
{% endif %}
{% endif %}
{% if appends and not quantized %}
            if (!is_query) {
                // The cached (rounded) value, also used here.
                const {{ element }}2 kept = {{ element }}2(channels[i]);
                if (args.appends != 0u) {
                    target[one[i]] = kept.x;
                    target[other[i]] = kept.y;
                }
                channels[i] = float2(kept);
            }
{% endif %}
            shared[h * {{ pitch }}u + one[i]] = channels[i].x;
            shared[h * {{ pitch }}u + other[i]] = channels[i].y;
        }
{% if appends and quantized %}
        if (!is_query) {
            // The cached (rounded) value, also used here.
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint block = 0u; block < {{ width // 32 }}u; block++) {
                half scale;
                const char code = encode32(shared[h * {{ pitch }}u + block * 32u + lane], &scale);
                if (args.appends != 0u) {
                    target[block * 32u + lane] = as_type<uchar>(code);
                }
                if (lane == 0u && args.appends != 0u) {
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
