use super::handover::HandOverKind;
use super::*;

#[test]
fn election_report_compares_reveille_with_a_curator_program() {
    let hand_overs = vec![
        HandOvers::with_values(HandOverKind::Graceful, &[2.0, 4.0, 3.0], &[5.0, 6.0, 7.0]),
        HandOvers::with_values(HandOverKind::CrashBeyondTimeout, &[100.0], &[200.0]),
    ];
    let requests = vec![Requests::with_values(10, Form::Polling, 21.0), Requests::with_values(10, Form::Watching, 9.0)];
    expect_test::expect![[r#"
        hand-over, ms                                        count     min    25 %  median    75 %     max  ratio
        graceful: Reveille                                       3    2.00    2.00    3.00    4.00    4.00  0.500
        graceful: peer                                           3    5.00    5.00    6.00    7.00    7.00
        crash, beyond 4000 ms: Reveille                          1  100.00  100.00  100.00  100.00  100.00  0.976
        crash, beyond 4000 ms: peer                              1  200.00  200.00  200.00  200.00  200.00
        crash, after removal of the leader's node: Reveille      1  100.00  100.00  100.00  100.00  100.00  0.500
        crash, after removal of the leader's node: peer          1  200.00  200.00  200.00  200.00  200.00
        graceful: Reveille was slower than the peer in 0 of 3 pairs of hand-overs (bound: 2)
        crash: Reveille was slower than the peer in 0 of 1 pairs of hand-overs (bound: 1)

        replicas      form  requests/min  per hand-over  min  max  received/min
        10         polling             0             21   21   21            48
        10        watching             0              9    9    9            48
        requests/min: requests of the replicas while no hand-over happens; each replica has a session timeout of 10s and requests a lease of 5s every 2s; received/min: requests that the servers received, including pings
    "#]]
    .assert_eq(&Results { hand_overs, period_ms: 2_000, requests }.to_text());
}

#[test]
fn verdict_fails_if_reveille_is_slower_in_too_many_hand_overs() {
    let peer = [10.0; 30];
    let slower_in = |count: usize| {
        let mut ours = [9.0; 30];
        ours[..count].fill(11.0);
        HandOvers::with_values(HandOverKind::Graceful, &ours, &peer).judge()
    };
    assert!(slower_in(20).is_ok());
    assert!(slower_in(21).unwrap_err().to_string().contains("21 of 30"));
    assert!(
        HandOvers::with_values(HandOverKind::Graceful, &[11.0], &[]).judge().is_ok(),
        "without a peer there is no comparison"
    );
}

#[test]
fn verdict_fails_if_requests_increase_with_the_number_of_replicas() {
    let watching = |replicas: u32, requests: f64| Requests::with_values(replicas, Form::Watching, requests);
    let polling = Requests::with_values(100, Form::Polling, 200.0);
    assert!(replicas::judge(&[watching(10, 9.0), polling, watching(100, 10.0)]).is_ok());
    assert!(replicas::judge(&[watching(10, 9.0), watching(100, 11.0)]).unwrap_err().to_string().contains("among 100"));
    assert!(replicas::judge(&[]).is_ok());
}
