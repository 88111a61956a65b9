"""Several processes that run one job: where they are (`places`), and how they meet (`meeting`)."""
