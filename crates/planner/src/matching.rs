//! Assigns segments to pods by what the pods already hold.
//!
//! An assignment problem, solved exactly by shortest augmenting paths (the Hungarian method, in the
//! form of Jonker and Volgenant 1987): cubic in the number of pods, which is milliseconds for 256.
//! Only pods of equal speed swap segments, since each segment is cut to its pod's speed.

use crate::plan::Plan;
use crate::queue::Queue;
use wornpath_blocks::BlockHash;

/// Assigns segments to pods so that the pods already hold the most tokens in total.
///
/// `held` writes how many leading blocks of a chain each pod holds. Returns the prompt tokens that
/// need not be computed because of that.
pub fn match_pods(
    plan: &mut Plan,
    queue: &Queue,
    mut held: impl FnMut(&[BlockHash], &mut [usize]),
) -> u64 {
    let pods = plan.speeds().pods();
    let mut saved = vec![vec![0_u64; pods]; pods];
    let mut depths = vec![0; pods];
    for segment in plan.segments() {
        for (at, stop) in plan.route().stops()[segment.stops.clone()].iter().enumerate() {
            depths.fill(0);
            held(queue.chain(stop.job), &mut depths);
            let known = if at == 0 { 0 } else { stop.shared as usize };
            let reusable = queue.reusable_blocks(stop.job);
            for (pod, depth) in depths.iter().enumerate() {
                let blocks = (*depth).min(reusable).saturating_sub(known);
                saved[segment.pod][pod] += (blocks * queue.block_size().get()) as u64;
            }
        }
    }
    let speeds = plan.speeds().all();
    // No gain outweighs a segment on a pod of another speed; keeping the assignment is always
    // possible.
    let cost = |one: usize, other: usize| match speeds[one] == speeds[other] {
        true => -(saved[one][other] as f64),
        false => 1e18,
    };
    let pods_of = assign(pods, cost);
    plan.rename_pods(&pods_of);
    pods_of.iter().enumerate().map(|(row, column)| saved[row][*column]).sum()
}

/// The column of each row at the least total cost.
fn assign(size: usize, cost: impl Fn(usize, usize) -> f64) -> Vec<usize> {
    // Row and column `size` mean "none"; potentials keep reduced costs at zero or more.
    let mut row_potential = vec![0.0; size + 1];
    let mut column_potential = vec![0.0; size + 1];
    let mut row_of = vec![size; size + 1];
    for row in 0..size {
        row_of[size] = row;
        let mut least = vec![f64::INFINITY; size + 1];
        let mut back = vec![size; size + 1];
        let mut done = vec![false; size + 1];
        let mut column = size;
        // Costs are finite, so each iteration marks another column as done and reaches a free one
        // before the last: there are as many columns as rows.
        for _ in 0..=size {
            if row_of[column] == size {
                break;
            }
            done[column] = true;
            let current = row_of[column];
            let mut step = f64::INFINITY;
            let mut next = size;
            for other in (0..size).filter(|other| !done[*other]) {
                let reduced =
                    cost(current, other) - row_potential[current] - column_potential[other];
                if reduced < least[other] {
                    least[other] = reduced;
                    back[other] = column;
                }
                if least[other] < step {
                    step = least[other];
                    next = other;
                }
            }
            for other in 0..=size {
                if done[other] {
                    row_potential[row_of[other]] += step;
                    column_potential[other] -= step;
                } else {
                    least[other] -= step;
                }
            }
            column = next;
        }
        while column != size {
            row_of[column] = row_of[back[column]];
            column = back[column];
        }
    }
    let mut column_of = vec![0; size];
    for (column, row) in row_of[..size].iter().enumerate() {
        column_of[*row] = column;
    }
    column_of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assignment_has_the_least_total_cost() {
        let costs = [[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]];
        assert_eq!(assign(3, |row, column| costs[row][column]), [1, 0, 2]);
        assert_eq!(assign(1, |_, _| 7.0), [0]);
        let mut state = 7_u64;
        for _ in 0..200 {
            let costs: Vec<f64> = (0..16)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    (state >> 60) as f64
                })
                .collect();
            let sum = |columns: &[usize]| -> f64 {
                columns.iter().enumerate().map(|(row, column)| costs[4 * row + column]).sum()
            };
            let mut best = f64::INFINITY;
            for code in 0..256_usize {
                let columns: Vec<_> = (0..4).map(|row| code >> (2 * row) & 3).collect();
                if (0..4).all(|column| columns.contains(&column)) {
                    best = best.min(sum(&columns));
                }
            }
            assert_eq!(sum(&assign(4, |row, column| costs[4 * row + column])), best);
        }
    }
}
