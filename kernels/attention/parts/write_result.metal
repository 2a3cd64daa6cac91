{# Combines the sums of simdgroups with different positions, and writes the result or the partial results. #}
        // A thread writes one channel of a head.
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
            // With one split write the result{{ ", gated" if gates else "" }}; otherwise write sums, maximum
            // and denominator.
            if (alone) {
{% if gates %}
                const float gate = gates[row * {{ gates.pitch }}u + {{ gates.first }}u + (group.y * {{ group }}u + head) * {{ width }}u + c];
                const float result = sum / whole * sigmoid(gate);
{% else %}
                const float result = sum / whole;
{% endif %}
                heads[(first_head + head) * {{ width }}u + c] = result;
{% if quantizes %}
                const uint block = ((group.y * {{ group }}u + head) * {{ width }}u + c) / 32u;
                store_quantized(quantized_heads, {{ query_heads * width // 128 }}u, row, block, lane, result);
{% endif %}
            } else {
                device float* split_partial = partials + ((first_head + head) * args.splits + split) * {{ width + 2 }}u;
                split_partial[c] = sum;
                if (c == 0u) {
                    split_partial[{{ width }}] = highest / {{ base_2 }};
                    split_partial[{{ width + 1 }}] = whole;
                }
            }
        }
