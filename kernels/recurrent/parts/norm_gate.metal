{# Writes a head's output, with its gated RMSNorm if the kernel includes the norm. #}
{% set counted = " && counts" if padded else "" %}
{% if gated %}
        // Gated norm of the head's output.
        float squares = simd_sum(part == 0u{{ counted }} ? readout * readout : 0.0f);
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
            const float normed = readout * rsqrt(squares / {{ values_float }} + {{ gated }}) * gain[column];
            heads[(row * {{ heads }}u + head) * {{ values }}u + column] = normed * silu(gates[head * {{ values }}u + column]);
        }
{% else %}
        if (part == 0u{{ counted }}) {
            heads[(row * {{ heads }}u + head) * {{ values }}u + column] = readout;
        }
{% endif %}
