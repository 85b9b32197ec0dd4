// What the passes of a row that several workgroups share leave for the next one: of the row, by its first part, and of each part. They are
// read at params.notes and written at params.next_notes, which change places from pass to pass.

const STATE = 16u;
const OF_PART = 16u;

fn state_at(notes: u32, row: u32) -> u32 {
    return notes + row * (STATE + OF_PART * params.groups);
}

fn part_at(notes: u32, row: u32, number: u32) -> u32 {
    return state_at(notes, row) + STATE + OF_PART * number;
}

fn note(row: u32, number: u32) -> u32 {
    return work[state_at(params.notes, row) + number];
}

fn leave_note(row: u32, thread: u32, number: u32, value: u32) {
    if (part == 0u && thread == 0u) {
        work[state_at(params.next_notes, row) + number] = value;
    }
}

// Sums of a part.
fn leave_sums(row: u32, thread: u32, mine: Sums, count: u32) {
    let all = add_all(mine, thread, count);
    if (thread == 0u) {
        let place = part_at(params.next_notes, row, part);
        for (var c = 0u; c < 7u; c++) { // unroll
            if (c < count) {
                work[place + 2u * c] = all.each[c].x;
                work[place + 2u * c + 1u] = all.each[c].y;
            }
        }
    }
}

fn load_sum(place: u32, c: u32) -> vec2<u32> {
    return vec2<u32>(work[place + 2u * c], work[place + 2u * c + 1u]);
}

// Those of all parts.
fn sums_of(row: u32, thread: u32, count: u32) -> Sums {
    var mine = Sums();
    for (var n = thread; n < params.groups; n += THREADS) {
        let place = part_at(params.notes, row, n);
        for (var c = 0u; c < 7u; c++) { // unroll
            if (c < count) {
                mine.each[c] = add64(mine.each[c], load_sum(place, c));
            }
        }
    }
    return add_all(mine, thread, count);
}

// A pair of a part behind its sums, and the best of all parts.
fn leave_best(row: u32, thread: u32, mine: vec2<u32>) {
    let best = best_of(mine, thread);
    if (thread == 0u) {
        let place = part_at(params.next_notes, row, part) + 14u;
        work[place] = best.x;
        work[place + 1u] = best.y;
    }
}

fn best_of_parts(row: u32, thread: u32, none: vec2<u32>) -> vec2<u32> {
    var best = none;
    for (var n = thread; n < params.groups; n += THREADS) {
        let place = part_at(params.notes, row, n) + 14u;
        let other = vec2<u32>(work[place], work[place + 1u]);
        if (other.x > best.x || (other.x == best.x && other.y < best.y)) {
            best = other;
        }
    }
    return best_of(best, thread);
}
