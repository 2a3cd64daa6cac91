{# Combines the sums of threads with the same columns, and writes y. #}
    #pragma unroll
    for (uint v = 0u; v < {{ vectors }}u; v++) {
        *(threadgroup float4*)(shared + thread_id * {{ columns }}u + 4u * v) = {{ sums }}[v];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
{% if together > 1 %}
    const uint row_of_y = group.z * {{ together }}u + t;
{% endif %}
    for (uint c = thread_id; c < {{ each * columns }}u; c += {{ threads }}u) {
        float sum = 0.0f;
        #pragma unroll
        for (uint p = 0u; p < {{ parts }}u; p++) {
            sum += shared[p * {{ each * columns }}u + c];
        }
        const uint column = group.x * {{ each * columns }}u + c;
{% set exists = "column < " ~ width ~ "u" if width % (each * columns) != 0 else "" %}
{% if together > 1 %}
        if ({{ exists ~ " && " if exists else "" }}row_of_y < args.rows) {
            y[(row_of_y * {{ heads }}u + group.y) * {{ width }}u + column] = sum;
        }
{% elif exists %}
        if ({{ exists }}) {
            y[(group.z * {{ heads }}u + group.y) * {{ width }}u + column] = sum;
        }
{% else %}
        y[(group.z * {{ heads }}u + group.y) * {{ width }}u + column] = sum;
{% endif %}
    }
