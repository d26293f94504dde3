"""Lines as the first version that wrote lines wrote them: they are signed, so none of their bytes may change."""

from __future__ import annotations

OF_MODELS = (
    '{"bound":"4.60517019","examples":120,"format":"dqnfed-audit-1","models":{"federated":{"correct":13,"digest":'
    '"0d4ca587c2e63bb868800156cbf7b78dc4ea376fd9e1ae5bbfb78d301dc64784","loss":"2.35996102"},"start":{"correct":1'
    '2,"digest":"8bffbf88a5b1e8bb4ac2bc48957d26c4c5e294774dad81758f2c0cbfaf6f8d52","loss":"2.30258509"}},"pairs":'
    '{"start":{"better":"0.9897","difference":"0.0573759267","high":"0.20974804","low":"-0.0963927327","only_fede'
    'rated":13,"only_other":12,"worse":"0.3128"}},"partition":1,"resamples":9999,"run":"fedavg-0123456789ab"}'
)
"""Client 1 of three on digits, iid: logits b_c = c / 8 against logits 0."""
MADE = (
    '{"bound":"4.60517019","examples":40,"format":"dqnfed-audit-1","models":{"FedAvg":{"correct":30,"digest":"333'
    '3333333333333333333333333333333333333333333333333333333333333","loss":"0.5"},"federated":{"correct":30,"dige'
    'st":"0000000000000000000000000000000000000000000000000000000000000000","loss":"0.75"},"start":{"correct":28,'
    '"digest":"1111111111111111111111111111111111111111111111111111111111111111","loss":"0.5"}},"pairs":{"FedAvg"'
    ':{"better":"1","difference":"0.25","high":"1","low":"-0.5","only_federated":0,"only_other":0,"worse":"1"},"s'
    'tart":{"better":"0.99","difference":"0.25","high":"1","low":"-0.5","only_federated":3,"only_other":1,"worse"'
    ':"0.01"}},"partition":0,"resamples":9999,"run":"fedavg-0123456789ab"}'
)
"""`make_audit` of client 0 with 3 and 1, 0 and 0."""
