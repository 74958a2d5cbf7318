"""From approved to live: a challenger is scored beside the champion, and steps on as the evidence allows."""
