// A row's parts and shares: each of its params.groups workgroups has one part, side by side, and each thread of it a share of that.
//
// Before a top-k, the largest logit of each of the params.shares shares is looked at: the k-th largest of these is not above the k-th largest
// of all, for k tokens, one in each of k shares, are not below it. So only shares whose largest is not below it have tokens that may be
// among the k largest, and of those only the tokens that are not below it. Steps between that keep the largest logits do not
// change this: while a token from there on was taken out, all that are left are from there on.

fn leave_maximum(row: u32, thread: u32, most: u32) {
    let share = part * THREADS + thread;
    work[params.maxima + row * params.shares + share] = most;
    if (share == 0u) {
        work[params.counts + params.rows + row] = 0u;
    }
}
