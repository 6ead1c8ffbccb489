use super::handover::How;
use super::*;

#[test]
fn what_is_found_is_shown_beside_the_peer() {
    let hand_overs = vec![
        HandOvers::found(How::Graceful, &[2.0, 4.0, 3.0], &[5.0, 6.0, 7.0]),
        HandOvers::found(How::CrashBeyondTimeout, &[100.0], &[200.0]),
    ];
    let requests = vec![Requests::found(10, Form::Polling, 21.0), Requests::found(10, Form::Watching, 9.0)];
    expect_test::expect![[r#"
        hand-over, ms                             count     min    25 %  median    75 %     max  ratio
        graceful: ours                                3    2.00    2.00    3.00    4.00    4.00  0.500
        graceful: the peer                            3    5.00    5.00    6.00    7.00    7.00
        crash, 4000 ms and: ours                      1  100.00  100.00  100.00  100.00  100.00  0.976
        crash, 4000 ms and: the peer                  1  200.00  200.00  200.00  200.00  200.00
        after the dead one's node went: ours          1  100.00  100.00  100.00  100.00  100.00  0.500
        after the dead one's node went: the peer      1  200.00  200.00  200.00  200.00  200.00
        graceful: ours was slower in 0 of 3 pairs (at most 2 by chance)
        crash: ours was slower in 0 of 1 pairs (at most 1 by chance)

        replicas      form  requests/min  per hand-over  min  max  received/min
        10         polling             0             21   21   21            48
        10        watching             0              9    9    9            48
        a minute: at rest; each replica has a session of 10s and asks for a lease of 5s every 2s; received: by the servers' own count, pings included
    "#]]
    .assert_eq(&Found { hand_overs, period_ms: 2_000, requests }.in_words());
}

#[test]
fn ours_is_slower_if_it_is_in_more_pairs_than_chance_would_have() {
    let peer = [10.0; 30];
    let slower_in = |count: usize| {
        let mut ours = [9.0; 30];
        ours[..count].fill(11.0);
        HandOvers::found(How::Graceful, &ours, &peer).judge()
    };
    assert!(slower_in(20).is_ok());
    assert!(slower_in(21).unwrap_err().to_string().contains("21 of 30"));
    assert!(HandOvers::found(How::Graceful, &[11.0], &[]).judge().is_ok(), "there is nobody to compare with");
}

#[test]
fn those_who_watch_may_not_ask_more_when_they_are_more() {
    let watching = |replicas: u32, asked: f64| Requests::found(replicas, Form::Watching, asked);
    let polling = Requests::found(100, Form::Polling, 200.0);
    assert!(replicas::judge(&[watching(10, 9.0), polling, watching(100, 10.0)]).is_ok());
    assert!(replicas::judge(&[watching(10, 9.0), watching(100, 11.0)]).unwrap_err().to_string().contains("among 100"));
    assert!(replicas::judge(&[]).is_ok());
}
