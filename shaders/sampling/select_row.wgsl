// select.wgsl by one workgroup.

fn select_row(row: u32, thread: u32, target_sum: vec2<u32>, context: Context) {
    let found = search(row, thread, 0u, 0u, vec2<u32>(0u), target_sum, context);
    for (var n = first + thread; n < live; n += THREADS) {
        let token = token_at(row, n);
        let key = key_of(work[at(row, token)], context);
        if (key < found.threshold || (key == found.threshold && token > found.last)) {
            work[at(row, token)] = NOTHING;
        }
    }
}
