{% set counted = " && counts" if padded else "" %}
{% if gated %}
        // The norm of the head's answers, and what its gate lets through.
        float squares = simd_sum(part == 0u{{ counted }} ? answer * answer : 0.0f);
{% if simdgroups > 1 %}
        threadgroup float* sums = partials + row % 2u * {{ simdgroups }}u;
        if (lane == 0u) {
            sums[simdgroup_id] = squares;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        squares = 0.0f;
        for (uint i = 0u; i < {{ simdgroups }}u; i++) {
            squares += sums[i];
        }
{% endif %}
        if (part == 0u{{ counted }}) {
            const float normed = answer * rsqrt(squares / {{ values_float }} + {{ gated }}) * gain[column];
            heads[(row * {{ heads }}u + head) * {{ values }}u + column] = normed * silu(gates[head * {{ values }}u + column]);
        }
{% else %}
        if (part == 0u{{ counted }}) {
            heads[(row * {{ heads }}u + head) * {{ values }}u + column] = answer;
        }
{% endif %}
