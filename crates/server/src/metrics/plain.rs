//! Conversion of OpenMetrics text to the text format of Prometheus, version 0.0.4, for clients that do not accept
//! OpenMetrics.
//!
//! Source: Prometheus, "Exposition formats". The two formats differ in three points. The text format describes a
//! counter under the name of its sample, which ends with `_total`. The text format has no units, and no line that marks
//! the end of the text.

/// Converts an OpenMetrics text that contains only counters, gauges and histograms, and no exemplars.
pub(super) fn of_open_metrics(text: &str) -> String {
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        let description = ["# HELP ", "# TYPE "].iter().find_map(|start| Some((start, line.strip_prefix(start)?)));
        match description.and_then(|(start, rest)| Some((start, rest.split_once(' ')?))) {
            Some((start, (name, rest))) if counters.contains(&name) => {
                plain.extend([start, name, "_total ", rest]);
            }
            _ => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_turns_open_metrics_into_the_plain_text_format() {
        let text = "# HELP a_runs Runs of a.\n# TYPE a_runs counter\na_runs_total{state=\"ok\"} 1\n\
                    # HELP a_bytes Size.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes 2\n# EOF\n";
        let plain = "# HELP a_runs_total Runs of a.\n# TYPE a_runs_total counter\na_runs_total{state=\"ok\"} 1\n\
                     # HELP a_bytes Size.\n# TYPE a_bytes gauge\na_bytes 2\n";
        assert_eq!(of_open_metrics(text), plain);
    }
}
