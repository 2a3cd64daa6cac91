{# Prefill attention with products of tensors, for a f16 cache that is no ring. #}
{% set pitch = width + 8 %}
    // Metal 4: the simdgroups share {{ lines }} query rows and multiply tensors, {{ tensor_tile }} positions at a time.
    // Keys and values are tensors over the cache. Queries and weights are rounded to f16. Four lanes share a
    // query row of scores.
    threadgroup half4 query_memory[{{ lines * pitch // 4 }}];
    threadgroup float scores[{{ lines * (tensor_tile + 4) }}];
    threadgroup half4 weight_memory[{{ lines * (tensor_tile + 8) // 4 }}];
    threadgroup float row_factors[{{ lines }}];
    threadgroup half* queries = (threadgroup half*)query_memory;
    threadgroup half* weights = (threadgroup half*)weight_memory;
    const uint thread_id = simdgroup_id * 32u + lane;
    const uint own_row = thread_id / 4u;
    const uint part = thread_id % 4u;
    const uint first = group.x * {{ rows_each }}u;
    const uint last = args.rows - 1u;
    const uint first_head = group.y * {{ heads_each }}u;
    const uint limit = positions[min(first + own_row / {{ heads_each }}u, last)];

    // Queries with the scale of scores. Rows past the last repeat it.
    for (uint i = thread_id; i < {{ lines * width // 4 }}u; i += 128u) {
        const uint query_row = i / {{ width // 4 }}u;
        const uint c = i % {{ width // 4 }}u * 4u;
        const uint from = min(first + query_row / {{ heads_each }}u, last);
        device const float* query = q + (from * {{ query_heads }}u + first_head + query_row % {{ heads_each }}u) * {{ width }}u;
        *(threadgroup half4*)(queries + query_row * {{ pitch }}u + c) = half4({{ factor }} * *(device const float4*)(query + c));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    auto left_queries = tensor<threadgroup half, dextents<int, 2>, tensor_inline>(
        queries, dextents<int, 2>({{ width }}, {{ lines }}), array<int, 2>{1, {{ pitch }}});
    constexpr auto score_shape = mpp::tensor_ops::matmul2d_descriptor({{ lines }}, {{ tensor_tile }}, {{ width }}, false, true);
    mpp::tensor_ops::matmul2d<score_shape, execution_simdgroups<4>> score_products;
    constexpr auto value_shape = mpp::tensor_ops::matmul2d_descriptor(
        {{ lines }}, {{ width }}, static_cast<int>(dynamic_extent), false, false, false,
        mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<value_shape, execution_simdgroups<4>> value_products;

    const uint rows = min({{ rows_each }}u, args.rows - first);
    for (uint begin = 0u, end = 0u; begin < rows; begin = end) {
{% if window %}
        // The next run of rows of one slot, with its first and last positions.
        uint shortest = 0xffffffffu;
{% else %}
        // The next run of rows of one slot, with its last position.
{% endif %}
        const uint slot = slots[first + begin];
        uint longest = 0u;
        while (end < rows && slots[first + end] == slot) {
{% if window %}
            shortest = min(shortest, positions[first + end]);
{% endif %}
            longest = max(longest, positions[first + end]);
            end++;
        }
        const ulong cached_head = ulong(slot) * {{ key_heads }}ul + ulong(first_head / {{ group }}u);
        const ulong first_place = cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;

{% if sinks %}
        // A sink is a score without a value.
        float maximum = {{ base_2 }} * sinks[first_head + own_row % {{ heads_each }}u];
        float total = part == 0u ? 1.0f : 0.0f;
{% else %}
        float maximum = -1.0e38f;
        float total = 0.0f;
{% endif %}
        auto sums = value_products.get_destination_cooperative_tensor<
            tensor<threadgroup half, dextents<int, 2>, tensor_inline>,
            tensor<device half, dextents<int, 2>, tensor_inline>, float>();
        #pragma unroll
        for (ushort i = 0; i < sums.get_capacity(); i++) {
            if (sums.is_valid_element(i)) {
                sums[i] = 0.0f;
            }
        }

{% if window %}
        // Starts at the first position that any row attends to.
        const uint oldest = shortest >= {{ window }}u ? shortest - {{ window - 1 }}u : 0u;
        for (uint start = oldest; start <= longest; start += {{ tensor_tile }}u) {
{% else %}
        for (uint start = 0u; start <= longest; start += {{ tensor_tile }}u) {
{% endif %}
            // Positions past the last are outside of the tensors.
            const int count = int(min({{ tensor_tile }}u, longest + 1u - start));
            const ulong place = first_place + ulong(start) * {{ kv_stride }}ul;
            auto right_keys = tensor<device half, dextents<int, 2>, tensor_inline>(
                (device half*)(keys + place), dextents<int, 2>({{ width }}, count), array<int, 2>{1, {{ kv_stride }}});
            auto right_values = tensor<device half, dextents<int, 2>, tensor_inline>(
                (device half*)(values + place), dextents<int, 2>({{ width }}, count), array<int, 2>{1, {{ kv_stride }}});
            auto left_weights = tensor<threadgroup half, dextents<int, 2>, tensor_inline>(
                weights, dextents<int, 2>(count, {{ lines }}), array<int, 2>{1, {{ tensor_tile + 8 }}});

            auto products =
                score_products.get_destination_cooperative_tensor<decltype(left_queries), decltype(right_keys), float>();
            score_products.run(left_queries, right_keys, products);
            #pragma unroll
            for (ushort i = 0; i < products.get_capacity(); i++) {
                const auto at = products.get_multidimensional_index(i);
                if (products.is_valid_element(i)) {
                    scores[uint(at[1]) * {{ tensor_tile + 4 }}u + uint(at[0])] = products[i];
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);

            // Softmax weights.
            float own_scores[{{ tensor_tile // 4 }}];
            float highest = maximum;
            #pragma unroll
            for (uint k = 0u; k < {{ tensor_tile // 4 }}u; k++) {
                const uint p = start + part * {{ tensor_tile // 4 }}u + k;
                const float score = scores[own_row * {{ tensor_tile + 4 }}u + part * {{ tensor_tile // 4 }}u + k];
{% if window %}
                const bool live = p <= limit && limit - p < {{ window }}u;
{% else %}
                const bool live = p <= limit;
{% endif %}
{% if softcap %}
                own_scores[k] = live ? {{ base_2 }} * softcap(score, {{ softcap }}) : -2.0e38f;
{% else %}
                own_scores[k] = live ? score : -2.0e38f;
{% endif %}
                highest = max(highest, own_scores[k]);
            }
            highest = max(highest, simd_shuffle_xor(highest, ushort(1)));
            highest = max(highest, simd_shuffle_xor(highest, ushort(2)));
            const float rescale = exp2(maximum - highest);
            maximum = highest;
            total *= rescale;
            #pragma unroll
            for (uint k = 0u; k < {{ tensor_tile // 4 }}u; k++) {
                const half weight = half(exp2(own_scores[k] - highest));
                weights[own_row * {{ tensor_tile + 8 }}u + part * {{ tensor_tile // 4 }}u + k] = weight;
                total += float(weight);
            }
            if (part == 0u) {
                row_factors[own_row] = rescale;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);

            // Sums of values.
            #pragma unroll
            for (ushort i = 0; i < sums.get_capacity(); i++) {
                const auto at = sums.get_multidimensional_index(i);
                if (sums.is_valid_element(i)) {
                    sums[i] *= row_factors[at[1]];
                }
            }
            value_products.run(left_weights, right_values, sums);
        }

        // Divide by the denominators and store the run's rows.
        total += simd_shuffle_xor(total, ushort(1));
        total += simd_shuffle_xor(total, ushort(2));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (part == 0u) {
            row_factors[own_row] = total;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (ushort i = 0; i < sums.get_capacity(); i++) {
            const auto at = sums.get_multidimensional_index(i);
            const uint row = uint(at[1]) / {{ heads_each }}u;
            const uint head = first_head + uint(at[1]) % {{ heads_each }}u;
            if (sums.is_valid_element(i) && row >= begin && row < end) {
{% if gates %}
                const uint gate = (first + row) * {{ gates.pitch }}u + {{ gates.first }}u + head * {{ width }}u + uint(at[0]);
                const float factor = sigmoid(gates[gate]) / row_factors[at[1]];
                heads[((first + row) * {{ query_heads }}u + head) * {{ width }}u + uint(at[0])] = sums[i] * factor;
{% else %}
                const float mean = sums[i] / row_factors[at[1]];
                heads[((first + row) * {{ query_heads }}u + head) * {{ width }}u + uint(at[0])] = mean;
{% endif %}
            }
        }
    }
