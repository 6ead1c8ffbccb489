//! What was asked, without its content: for metrics, and to tell a reply that does not belong to it.

use scheduler::{Ask, Reply};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// So many schedules.
    Create(usize),
    Put,
    PutIf,
    Cancel,
    CancelIf,
    Redrive,
    LetGo,
    Outcome,
    Nudge,
}

impl Kind {
    pub(crate) fn of(ask: &Ask) -> Self {
        match ask {
            Ask::Create(all) => Kind::Create(all.len()),
            Ask::Put(_) => Kind::Put,
            Ask::PutIf { .. } => Kind::PutIf,
            Ask::CancelIf { .. } => Kind::CancelIf,
            Ask::Cancel { .. } => Kind::Cancel,
            Ask::Redrive { .. } => Kind::Redrive,
            Ask::LetGo { .. } => Kind::LetGo,
            Ask::Outcome(_) => Kind::Outcome,
            Ask::Nudge => Kind::Nudge,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Create(_) => "create",
            Kind::Put => "put",
            Kind::PutIf => "put_if",
            Kind::Cancel => "cancel",
            Kind::CancelIf => "cancel_if",
            Kind::Redrive => "redrive",
            Kind::LetGo => "let_go",
            Kind::Outcome => "outcome",
            Kind::Nudge => "nudge",
        }
    }

    /// The scheduler takes it for granted that a create is answered as one, and so on.
    pub(crate) fn is_answered_by(self, reply: &Reply) -> bool {
        match (self, reply) {
            (_, Reply::NotOwned | Reply::Failed(_)) => true,
            (Kind::Create(len), Reply::Created(answers)) => answers.len() == len,
            (Kind::Put | Kind::PutIf, Reply::Put(_))
            | (Kind::PutIf | Kind::CancelIf, Reply::Changed)
            | (Kind::Cancel | Kind::CancelIf, Reply::Cancelled(_))
            | (Kind::Redrive, Reply::Redriven(_))
            | (Kind::LetGo, Reply::LetGo(_))
            | (Kind::Outcome | Kind::Nudge, Reply::Heard) => true,
            _ => false,
        }
    }
}
