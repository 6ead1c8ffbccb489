use super::*;

/// Log of a correct run. The first leader hands over at 40. The second leader is paused from 90 to 300, and its last claim
/// arrives after the claim of the third leader.
const CORRECT: &str = "claim leader a 5 10 100
claim leader a 5 30 120
end leader a 5 40
claim leader b 7 50 150
claim leader b 7 80 170
claim leader c 9 171 260
claim leader b 7 90 180
end leader b 7 300
claim leader c 9 310 400";

fn board(lines: &str) -> Board {
    let mut board = Board::default();
    lines.lines().for_each(|line| board.add(line).unwrap());
    board
}

/// Checks that a log breaks these rules.
fn check(lines: &str, expected: &[Rule]) {
    let verdict = board(lines).judge();
    assert_eq!(verdict.broken.keys().copied().collect::<Vec<_>>(), expected, "{verdict}");
}

#[test]
fn late_claim_of_a_paused_leader_is_rejected_and_permitted() {
    let lines = CORRECT.replace("90 180", "90 170");
    check(&lines, &[]);
    let board = board(&lines);
    assert_eq!((board.accepted, board.rejected), (6, 1));
    assert_eq!(board.holders("leader").map(|(term, name, _)| (term, name)).next_back(), Some((9, "c")));
}

#[test]
fn judge_finds_a_leader_that_begins_before_the_earlier_one_could_end() {
    check(CORRECT, &[Rule::Overlap]);
}

#[test]
fn judge_finds_a_leader_that_continues_after_the_hand_over() {
    check(
        "claim leader a 5 10 100\nclaim leader b 7 50 150\nclaim leader a 5 60 60\nend leader a 5 61",
        &[Rule::Overlap],
    );
}

#[test]
fn judge_finds_a_killed_leader_whose_session_has_not_ended() {
    check("claim leader a 5 10 100\nclaim leader b 7 50 150", &[Rule::Overlap]);
    check("claim leader a 5 10 100\nclaim leader b 7 100 150", &[]);
}

#[test]
fn judge_finds_an_overlap_with_a_leader_before_the_last_one() {
    check(
        "claim leader a 1 10 100\nclaim leader b 2 20 20\nend leader b 2 21\nclaim leader c 3 60 70",
        &[Rule::Overlap],
    );
}

#[test]
fn judge_finds_a_term_that_two_processes_share_or_that_falls() {
    check("claim leader a 5 10 20\nend leader a 5 20\nclaim leader b 5 30 40", &[Rule::TermShared]);
    check("claim leader a 5 10 20\nend leader a 5 20\nclaim leader b 4 30 40", &[Rule::TermFell]);
}

#[test]
fn judge_finds_a_claim_after_its_own_end() {
    check("claim leader a 5 10 20\nclaim leader a 5 30 20", &[Rule::Expired]);
}

#[test]
fn keys_are_judged_alone() {
    check("claim 8/0 a 5 10 100\nclaim 8/1 b 5 10 100\nclaim 16/0 b 6 10 100", &[]);
}

#[test]
fn malformed_lines_are_rejected() {
    let lines =
        ["", "claim leader a 5 10", "claim leader a 5 10 x", "other leader a 5 10", "set 8/0 a 5 1 1", "end leader a"];
    for line in lines {
        let error = Board::default().add(line).unwrap_err();
        assert!(error.to_string().contains(&format!("`{line}`")), "{error}");
    }
}

#[test]
fn overlap_of_keys_with_common_ids_counts_only_between_processes() {
    let lines =
        "claim 8/1 a 5 10 10\nclaim 8/1 a 5 50 50\nclaim 16/9 b 6 30 30\nclaim 16/9 b 6 90 90\nclaim 16/1 a 7 20 20";
    assert_eq!(board(lines).overlap_max(|_, _| true), 20);
    assert_eq!(board(lines).overlap_max(|_, _| false), 0);
}

#[test]
fn claims_of_a_killed_process_end_at_its_death() {
    let mut board = board("claim 8/0 a 5 10 10\nclaim 8/1 a 5 20 20\nclaim 8/2 b 5 20 20\nend 8/1 a 5 25");
    board.end_killed("a", 30);
    let ended = |key| board.holders(key).map(|(_, _, holder)| holder.ended).collect::<Vec<_>>();
    assert_eq!((ended("8/0"), ended("8/1"), ended("8/2")), (vec![Some(30)], vec![Some(25)], vec![None]));
}
