{
  'targets': [
    {
      'target_name': 'state_handoff',
      'sources': [
        'cuda/binding/addon.cc',
        'cuda/core/sealed_memory.cc',
        'cuda/core/generations.cc',
        # memory
        'cuda/binding/memory.cc',
        # transfer
        'cuda/binding/transfer.cc',
      ],
      'include_dirs': ['cuda'],
      'dependencies': ["<!(node -p \"require('node-addon-api').targets\"):node_addon_api_except_all"],
      'defines': ['NAPI_VERSION=9', 'NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS'],
      'cflags!': ['-fno-exceptions'],
      'cflags_cc!': ['-fno-exceptions', '-std=gnu++17', '-fno-rtti'],
      'cflags_cc': ['-std=gnu++20', '-O2', '-Wall', '-Wextra', '-fvisibility=hidden'],
      'ldflags': ['-pthread'],
      'libraries': ['-ldl'],
    },
  ],
}
