{# Dequantizes 32 columns of a tile's rows of W to threadgroup memory. `of_planes` is the prefix of W's planes. #}
{% set packet = "block" if per_block == 1 else "block * " ~ per_block ~ "u + part" %}
{% set in_group = " / " ~ per_group // per_block ~ "u" if per_group > per_block else "" %}
{% set low_by = " * scale.x + scale.z" if offset and half_block_scales else " * scale.x + scale.y" if offset else " * scale.x" if half_block_scales else " * scale" if scaled else "" %}
{% set high_by = " * scale.y + scale.w" if offset and half_block_scales else " * scale.y" if half_block_scales else low_by %}
        // {{ "Stage" if element == "ushort" else "Dequantize" }} 32 columns of {{ tile_outputs }} rows of W.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
{% set parts_of_row = per_block if per_block > 1 else 2 %}
{% set pieces = tile_outputs * parts_of_row %}
{% if pieces == 128 %}
        {
            const uint i = own_thread;
{% elif pieces % 128 == 0 %}
        #pragma unroll
        for (uint n = 0u; n < {{ pieces // 128 }}u; n++) {
            const uint i = own_thread + n * 128u;
{% else %}
        for (uint i = own_thread; i < {{ pieces }}u; i += 128u) {
{% endif %}
            const uint output = i / {{ parts_of_row }}u;
            const uint part = i % {{ parts_of_row }}u;
{% if ragged %}
            const uint row = min(first_output + output, {{ outputs - 1 }}u);
{% else %}
            const uint row = first_output + output;
{% endif %}
{% if nested %}
            const {{ scale_type }} scale = {{ widened }}({{ of_planes }}_scales, row * {{ stride }}u + block);
{% elif scaled %}
            const {{ scale_type }} scale = {{ widened }}({{ of_planes }}_scales[row * {{ groups }}u + block{{ in_group }}]);
{% endif %}
{% if element == "ushort" %}
            *(threadgroup uint4*)(tile_weights + output * {{ pitch }}u + part * {{ columns }}u) = {{ of_planes }}_{{ planes[0].name }}[row * {{ stride }}u + {{ packet }}];
{% elif per_block > 1 %}
            float4 weights[{{ vectors }}];
            {{ decoder }}_decode({{ of_planes }}_{{ planes[0].name }}[row * {{ stride }}u + {{ packet }}], weights);
            threadgroup {{ element }}* target = tile_weights + output * {{ pitch }}u + part * {{ columns }}u;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                *(threadgroup {{ vector }}*)(target + 4u * v) = {{ stored_as("weights[v]" ~ low_by) }};
            }
{% else %}
            // Half a packet: 8 columns, and 8 more 16 columns further.
{% if packed %}
            const {{ packet_type }} codes = {{ loader }}_half({{ of_planes }}_{{ planes[0].name }}, row * {{ stride }}u + block, part);
{% else %}
            const uint2 codes = ((device const uint2*)({{ of_planes }}_{{ planes[0].name }} + row * {{ stride }}u + block))[part];
{% endif %}
            threadgroup {{ element }}* target = tile_weights + output * {{ pitch }}u + part * 8u;
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                float4 low;
                float4 high;
                {{ decoder }}_word({{ "codes, v" if packed else "codes[v]" }}, low, high);
                *(threadgroup {{ vector }}*)(target + 4u * v) = {{ stored_as("low" ~ low_by) }};
                *(threadgroup {{ vector }}*)(target + 16u + 4u * v) = {{ stored_as("high" ~ high_by) }};
            }
{% endif %}
        }
