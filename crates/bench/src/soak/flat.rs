//! Test for growth of a figure that the trial samples every minute.

/// Largest allowed growth over the sampled time, as a fraction of the mean.
const GROWTH_MAX: f64 = 0.10;

#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Growth that is always allowed, in the figure's unit. A merge of the store or another process on the machine may
    /// cause such growth.
    pub(super) slack: f64,
    /// Values of the figure, one per minute.
    pub(super) values: Vec<f64>,
}

impl Figure {
    /// Returns the growth from the first to the last minute, by linear least squares.
    #[expect(clippy::cast_precision_loss, reason = "minutes are few")]
    fn growth(&self) -> f64 {
        let count = self.values.len() as f64;
        let mean_at = (count - 1.0) / 2.0;
        let mean = self.mean();
        let (mut covariance, mut variance) = (0.0, 0.0);
        for (at, value) in self.values.iter().enumerate() {
            let at = at as f64 - mean_at;
            covariance += at * (value - mean);
            variance += at * at;
        }
        if variance == 0.0 { 0.0 } else { covariance / variance * (count - 1.0) }
    }

    #[expect(clippy::cast_precision_loss, reason = "minutes are few")]
    fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len().max(1) as f64
    }

    fn bound(&self) -> f64 {
        self.slack.max(GROWTH_MAX * self.mean())
    }

    pub(super) fn to_text(&self) -> String {
        let Figure { name, unit, .. } = self;
        let (mean, growth, bound, minutes) = (self.mean(), self.growth(), self.bound(), self.values.len());
        format!(
            "{name}: {mean:.1} {unit} on average over {minutes} minutes, growth {growth:+.1} {unit} \
             (bound: {bound:.1} {unit})"
        )
    }

    /// Returns a message if the figure has no values or grows by more than its bound; otherwise returns `None`.
    pub(super) fn fault(&self) -> Option<String> {
        if self.values.is_empty() {
            return Some(format!("{} has no values", self.name));
        }
        (self.growth() > self.bound()).then(|| format!("not flat: {}", self.to_text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(slack: f64, values: &[f64]) -> Option<String> {
        Figure { name: "disk", unit: "MiB", slack, values: values.to_vec() }.fault()
    }

    #[test]
    fn measurement_that_grows_by_more_than_a_tenth_is_not_flat() {
        assert_eq!(fault(0.0, &[100.0, 102.0, 104.0, 106.0]), None);
        let found = fault(0.0, &[100.0, 104.0, 108.0, 112.0]).unwrap();
        assert_eq!(found, "not flat: disk: 106.0 MiB on average over 4 minutes, growth +12.0 MiB (bound: 10.6 MiB)");
        assert_eq!(fault(20.0, &[100.0, 104.0, 108.0, 112.0]), None);
    }

    #[test]
    fn falling_or_oscillating_measurement_counts_as_flat() {
        assert_eq!(fault(0.0, &[100.0, 150.0, 100.0, 150.0, 100.0]), None);
        assert_eq!(fault(0.0, &[100.0, 50.0, 10.0]), None);
        assert_eq!(fault(0.0, &[5.0]), None);
        assert!(fault(0.0, &[]).is_some());
    }
}
